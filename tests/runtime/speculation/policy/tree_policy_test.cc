#include "runtime/speculation/policy/tree_policy.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

TreeShape parsed(const std::string& text) {
  const std::optional<TreeShape> shape = parse_tree(text);
  EXPECT_TRUE(shape.has_value()) << text;
  return shape.value_or(TreeShape{});
}

// What kernels/tree/op.h asks of a level.
void expect_sound(const TreeShape& shape, const std::string& text) {
  int64_t rows = 1, candidates = 0;
  ASSERT_FALSE(shape.levels.empty()) << text;
  for (const TreeLevel& level : shape.levels) {
    EXPECT_EQ(level.rows, rows) << text;
    EXPECT_EQ(level.first_candidate, candidates) << text;
    EXPECT_GT(level.branch, 0) << text;
    EXPECT_LE(level.branch, kMaxBranch) << text;
    EXPECT_LE(level.width, level.keep) << text;
    EXPECT_LE(level.width, kMaxFrontier) << text;
    EXPECT_GT(level.keep, 0) << text;
    EXPECT_LE(level.keep, level.rows * level.branch) << text;
    EXPECT_LT(level.keep, kMaxTreeNodes) << text;
    EXPECT_EQ(level.width == 0, &level == &shape.levels.back()) << text;
    rows = level.width;
    candidates += level.keep;
  }
  EXPECT_EQ(shape.candidates(), candidates) << text;
  EXPECT_GE(shape.nodes, 2) << text;
  EXPECT_LE(shape.nodes, kMaxTreeNodes) << text;
  EXPECT_LE(shape.nodes, 1 + candidates) << text;
}

void expect_refused(const std::string& text, const std::string& saying) {
  try {
    parse_tree(text, "--tree");
    ADD_FAILURE() << text << " was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    const std::string what = error.what();
    EXPECT_NE(what.find("--tree: '" + text + "'"), std::string::npos) << what;
    EXPECT_NE(what.find(saying), std::string::npos) << what;
    EXPECT_FALSE(error.info().hint.empty());
  }
}

TEST(TreePolicy, Eagle2AsPublished) {
  const TreeShape shape = parsed("eagle2");
  expect_sound(shape, "eagle2");
  EXPECT_EQ(shape.nodes, 60);
  EXPECT_EQ(shape.deepest(), 8);
  EXPECT_EQ(shape.widest(), 10);
  EXPECT_LT(shape.threshold, 0);
  EXPECT_EQ(shape.levels[0].branch, 10);
  EXPECT_EQ(shape.levels[0].keep, 10);
  EXPECT_EQ(shape.levels[1].keep, 59);  // of 100: more cannot be in the tree
  EXPECT_EQ(shape.levels[1].width, 10);
  EXPECT_EQ(parsed("eagle2:60,7,10").candidates(), shape.candidates());
}

TEST(TreePolicy, Eagle2WithValues) {
  const TreeShape shape = parsed("eagle2:32,8,4");
  EXPECT_EQ(shape.nodes, 32);
  EXPECT_EQ(shape.deepest(), 9);
  EXPECT_EQ(shape.widest(), 4);
  EXPECT_EQ(shape.levels[1].keep, 16);
  EXPECT_EQ(parsed("eagle2:8").levels[1].keep, 10);  // the frontier is always kept
  EXPECT_EQ(parsed("eagle2:60,0").nodes, 11);        // there are no more
}

TEST(TreePolicy, OptTree) {
  const TreeShape shape = parsed("opt");
  expect_sound(shape, "opt");
  EXPECT_EQ(shape.nodes, 51);
  EXPECT_EQ(shape.deepest(), 10);
  EXPECT_EQ(shape.widest(), 50);
  EXPECT_FLOAT_EQ(shape.threshold, 0.7f);
  EXPECT_EQ(shape.levels[3].branch, 50);
  const TreeShape given = parsed("opt:17,4,0.25");
  EXPECT_EQ(given.nodes, 17);
  EXPECT_EQ(given.deepest(), 4);
  EXPECT_FLOAT_EQ(given.threshold, 0.25f);
  EXPECT_EQ(parsed("opt:128").widest(), kMaxFrontier);
  EXPECT_EQ(parsed("opt:128").nodes, 128);
}

TEST(TreePolicy, BeamsKeepEveryNode) {
  const TreeShape shape = parsed("beams:4,16,16,16,16");
  expect_sound(shape, "beams");
  EXPECT_EQ(shape.nodes, 69);
  EXPECT_EQ(shape.candidates(), 68);
  EXPECT_EQ(shape.levels[0].branch, 4);
  EXPECT_EQ(shape.levels[1].rows, 4);
  EXPECT_EQ(shape.levels[1].branch, 16);
  EXPECT_EQ(shape.levels[1].keep, 16);
}

TEST(TreePolicy, Chain) {
  const TreeShape shape = parsed("chain:6");
  expect_sound(shape, "chain");
  EXPECT_EQ(shape.nodes, 7);
  EXPECT_EQ(shape.deepest(), 6);
  EXPECT_EQ(shape.widest(), 1);
  EXPECT_EQ(parsed("chain:127").nodes, 128);
}

TEST(TreePolicy, AutoHasNoShape) { EXPECT_FALSE(parse_tree("auto").has_value()); }

TEST(TreePolicy, EveryShapeIsSound) {
  for (int nodes : {2, 3, 10, 60, 64, 65, 127, 128}) {
    for (int depth : {1, 2, 7, 40, 126}) {
      for (int branch : {1, 2, 10, 64}) {
        const std::string text = str("eagle2:", nodes, ",", depth, ",", branch);
        expect_sound(parsed(text), text);
      }
      const std::string text = str("opt:", nodes, ",", depth, ",0");
      expect_sound(parsed(text), text);
    }
  }
  for (const char* text : {"beams:1", "beams:64,63", "beams:2,64,1,3", "chain:1"}) expect_sound(parsed(text), text);
}

TEST(TreePolicy, RefusesWhatIsNoTree) {
  expect_refused("eagle2:129", "nodes 129 is not in [2, 128]");
  expect_refused("eagle2:1", "nodes 1");
  expect_refused("eagle2:60,127", "depth 127");
  expect_refused("eagle2:60,7,65", "topk 65");
  expect_refused("eagle2:60,7,10,1", "4 values");
  expect_refused("eagle2:", "nodes '' is not a number");
  expect_refused("eagle2:6x", "nodes '6x' is not a number");
  expect_refused("eagle2:99999999999999999999", "is not a number");
  expect_refused("opt:50,10,1.5", "threshold '1.5'");
  expect_refused("opt:50,10,nan", "threshold 'nan'");
  expect_refused("opt:50,0", "depth 0");
  expect_refused("beams", "no widths");
  expect_refused("beams:4,0", "width 0");
  expect_refused("beams:65", "width 65");
  expect_refused("beams:64,64", "129 nodes");
  expect_refused("chain", "no number of tokens");
  expect_refused("chain:128", "tokens 128 is not in [1, 127]");
  expect_refused("auto:1", "auto takes no values");
  expect_refused("sequoia", "'sequoia' is not a kind of tree");
  expect_refused("", "is not a kind of tree");
}

}  // namespace
}  // namespace headrace
