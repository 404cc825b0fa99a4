// A tree's rows say what plain decoding says, bit for bit: each node's logits equal those of decoding its path alone,
// whoever rides along (docs/design.md, section 6). What every draft will stand on.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::LoadedModel;

Tree random_tree(int64_t nodes, int32_t root, int32_t vocab, std::mt19937* random) {
  Tree tree;
  tree.reset(root);
  while (tree.size() < nodes) {
    const int32_t parent = static_cast<int32_t>((*random)() % static_cast<uint32_t>(tree.size()));
    tree.add(static_cast<int32_t>((*random)() % static_cast<uint32_t>(vocab)), parent);
  }
  return tree;
}

// The first child with this token, which acceptance would follow; it is added if there is none.
int32_t child_of(Tree* tree, int32_t parent, int32_t token) {
  for (int64_t node = parent + 1; node < tree->size(); ++node) {
    const auto i = static_cast<size_t>(node);
    if (tree->parents[i] == parent && tree->tokens[i] == token) return static_cast<int32_t>(node);
  }
  return tree->add(token, parent);
}

std::vector<int32_t> path_to(const Tree& tree, int32_t node) {
  std::vector<int32_t> path;
  for (; node >= 0; node = tree.parents[static_cast<size_t>(node)]) path.insert(path.begin(), node);
  return path;
}

// On a device, with a kind of rows, of a model whose layers all have rows, or most of them a recurrent state.
using TreeCase = std::tuple<DeviceChoice, testing::RowsType, const char*>;
class TreeBits : public ::testing::TestWithParam<TreeCase> {
 protected:
  const LoadedModel model{testing::tiny_model(std::get<2>(GetParam())), std::get<1>(GetParam()),
                          std::get<0>(GetParam())};
  const int32_t vocab = static_cast<int32_t>(model.checkpoint->config().vocab);

  std::vector<float> row(const std::vector<float>& logits, int64_t index) const {
    return {logits.begin() + index * vocab, logits.begin() + (index + 1) * vocab};
  }
};

TEST_P(TreeBits, EveryNodeEqualsItsPathDecodedPlainly) {
  std::mt19937 random(3);
  for (const int64_t prompt : {5, 300, 509, 1100}) {
    const std::vector<int32_t> ids = testing::made_up_ids(prompt, vocab);
    SessionOptions options = model.options(prompt, 130);
    options.pass_rows = options.drawn_rows = 100;
    auto together = model.session(options);
    const int32_t root = *together->prefill(ids, nullptr, nullptr);
    const Tree tree = random_tree(100, root, vocab, &random);
    together->verify(tree);
    const std::vector<float> logits = together->logits(100);
    for (const int32_t node : {0, 1, 17, 42, 63, 64, 99}) {
      options.pass_rows = 1;
      auto alone = model.session(options);
      alone->prefill(ids, nullptr, nullptr);
      std::vector<float> last;
      for (const int32_t step : path_to(tree, node)) {
        Tree one;
        one.reset(tree.tokens[static_cast<size_t>(step)]);
        alone->verify(one);
        last = alone->logits(1);
        alone->commit({.nodes = {0}, .next = 0});
      }
      EXPECT_EQ(last, row(logits, node)) << "prompt " << prompt << ", node " << node;
    }
  }
}

// After a tree's path has been committed, decoding goes on as if it had been decoded plainly; the rejected rows left no
// trace. With an int8 cache until the prefix has rows that were quantised as they were committed, in two segments.
TEST_P(TreeBits, CommittedPathsEqualPlainDecoding) {
  std::mt19937 random(5);
  const std::vector<int32_t> ids = testing::made_up_ids(505, vocab);
  const int64_t count = low_bit(model.cache_type) ? 380 : 26;
  SessionOptions options = model.options(505, count + 14);
  options.sampling = {.temperature = 0.8f, .seed = 11};
  const std::vector<int32_t> plain = testing::decode_plainly(*model.session(options), ids, count + 4);
  options.pass_rows = 20;
  for (const KvMode mode : {KvMode::kDevice, KvMode::kHost}) {
    options.kv = mode;
    auto session = model.session(options);
    std::vector<int32_t> tokens = {*session->prefill(ids, nullptr, nullptr)};
    Acceptance acceptance;
    while (static_cast<int64_t>(tokens.size()) <
           count) {  // an oracle's guesses, right for up to three tokens, among wrong ones
      Tree tree = random_tree(8, tokens.back(), vocab, &random);
      int32_t at = 0;
      const size_t right = random() % 4;
      for (size_t i = 0; i < right; ++i) at = child_of(&tree, at, plain[tokens.size() + i]);
      while (tree.size() < 20) tree.add(0, at);
      accept(tree, session->verify(tree), &acceptance);
      session->commit(acceptance);
      for (size_t i = 1; i < acceptance.nodes.size(); ++i) {
        tokens.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
      }
      tokens.push_back(acceptance.next);
      EXPECT_GT(acceptance.nodes.size(), right);
    }
    tokens.resize(static_cast<size_t>(count));
    EXPECT_EQ(tokens, std::vector<int32_t>(plain.begin(), plain.begin() + count));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TreeBits,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values(testing::RowsType(DType::kF32),
                                                              testing::RowsType(DType::kBF16),
                                                              testing::RowsType(DType::kF16),
                                                              testing::RowsType(DType::kInt8), testing::kReadInInt8),
                                            ::testing::Values("llama31", "qwen35", "qwen3moe", "qwen35moe", "gptoss")),
                         [](const ::testing::TestParamInfo<TreeCase>& given) {
                           return testing::device_name(std::get<0>(given.param)) + "_" +
                                  std::get<1>(given.param).name() + "_" + std::get<2>(given.param);
                         });

TEST(Accept, FollowsTheTargetsSamples) {
  Tree tree;
  tree.reset(10);
  const int32_t a = tree.add(20, 0), b = tree.add(21, 0);
  const int32_t aa = tree.add(30, a), ba = tree.add(31, b);
  tree.add(40, ba);
  Acceptance got;
  accept(tree, std::vector<int32_t>{21, 30, 31, 1, 99, 2}, &got);  // root -> b -> ba, whose sample 99 no child has
  EXPECT_EQ(got.nodes, (std::vector<int32_t>{0, b, ba}));
  EXPECT_EQ(got.next, 99);
  accept(tree, std::vector<int32_t>{20, 30, 0, 7, 0, 0}, &got);
  EXPECT_EQ(got.nodes, (std::vector<int32_t>{0, a, aa}));
  EXPECT_EQ(got.next, 7);
  accept(tree, std::vector<int32_t>{5, 30, 31, 0, 0, 0},
         &got);  // nothing right: the target's own token comes out all the same
  EXPECT_EQ(got.nodes, std::vector<int32_t>{0});
  EXPECT_EQ(got.next, 5);
}

}  // namespace
}  // namespace headrace
