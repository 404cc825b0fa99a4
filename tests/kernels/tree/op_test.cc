// Trees grown level by level in device memory against trees built the plain way.
#include "kernels/tree/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/speculation/accept.h"
#include "runtime/speculation/policy/tree_policy.h"
#include "tests/kernels/tree/plain_tree.h"
#include "tests/support/golden.h"
#include "tests/support/kernel_test.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::KernelTest;
using namespace plain_tree;

constexpr int32_t kSlotShift = -300,
                  kLeastSlot = kRootPosition + kSlotShift + 2;  // nodes of depth 0 and 1 are below it

class DraftTreeTest : public KernelTest {
 protected:
  template <typename T>
  std::vector<T> fetch(const DeviceArray& array) {
    const std::vector<std::byte> bytes = download(array);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  void expect_same(const TreeShape& shape, const Draft& draft, bool prune, const std::string& what);
};
INSTANTIATE_KERNEL_TEST(DraftTreeTest);

// A draft's device memory, with guards around every array of it.
class Grower {
 public:
  using Output = std::function<DeviceArray(uint64_t)>;
  using Upload = std::function<DeviceArray(const std::vector<int32_t>&)>;
  Grower(const TreeShape& shape, const Output& output, const Upload& upload)
      : stride(shape.deepest() + 3),
        committed(upload({kCommitted})),
        root_token(upload({kRootToken})),
        root_position(upload({kRootPosition})),
        slot_shift(upload({kSlotShift})),
        progress(output(sizeof(TreeProgress))) {
    const auto candidates = static_cast<uint64_t>(shape.candidates());
    for (DeviceArray& array : table) array = output(4 * candidates);
    for (DeviceArray& array : frontier) array = output(4 * kMaxFrontier);
    path = output(static_cast<uint64_t>(4 * kMaxFrontier * stride));
  }
  TreeCandidates candidates() const {
    return {table[0].as<int32_t>(), table[1].as<float>(), table[2].as<int32_t>(), table[3].as<int32_t>()};
  }
  TreeFrontier frontier_view() const {
    return {frontier[0].as<int32_t>(),
            frontier[1].as<float>(),
            frontier[2].as<int32_t>(),
            frontier[3].as<int32_t>(),
            frontier[4].as<int32_t>(),
            path.as<int32_t>(),
            stride};
  }

  int64_t stride;
  DeviceArray committed, root_token, root_position, slot_shift, progress, table[4], frontier[5], path;
};

struct Target {
  explicit Target(int64_t nodes, int64_t path_stride, const Grower::Output& output) : stride(path_stride) {
    for (DeviceArray& array : arrays) array = output(static_cast<uint64_t>(4 * nodes));
    count = output(4);
    committed = output(4);
    path = output(static_cast<uint64_t>(4 * nodes * stride));
  }
  int64_t stride;
  TreeRows rows() const {
    const auto of = [&](size_t i) { return arrays[i].as<int32_t>(); };
    return {.count = count.as<int32_t>(),
            .tokens = of(0),
            .parents = of(1),
            .depths = of(2),
            .scores = arrays[3].as<float>(),
            .positions = of(4),
            .draw_positions = of(5),
            .path = path.as<int32_t>(),
            .path_stride = stride,
            .slots = of(6),
            .least_slot = kLeastSlot,
            .committed = committed.as<int32_t>()};
  }

  DeviceArray count, committed, arrays[7], path;
};

TreeGrowParams grow_params(const TreeShape& shape, size_t l, const Grower& grower) {
  const TreeLevel& level = shape.levels[l];
  TreeGrowParams params{};
  params.candidates = grower.candidates();
  params.progress = grower.progress.as<TreeProgress>();
  params.frontier = grower.frontier_view();
  params.committed = grower.committed.as<int32_t>();
  params.level = static_cast<int64_t>(l);
  params.rows = level.rows;
  params.branch = level.branch;
  params.width = level.width;
  params.keep = level.keep;
  params.first_candidate = level.first_candidate;
  params.nodes = shape.nodes;
  params.first_row = kFirstRow + 100 * static_cast<int64_t>(l);
  params.threshold = shape.threshold;
  return params;
}

void DraftTreeTest::expect_same(const TreeShape& shape, const Draft& draft, bool prune, const std::string& what) {
  const PlainTree plain(shape, draft, prune);
  const auto make = [this](uint64_t bytes) { return output(bytes); };
  Grower grower(shape, make, [this](const std::vector<int32_t>& values) { return upload_raw(values); });
  for (size_t l = 0; l < shape.levels.size(); ++l) {
    const DeviceArray log_probs = upload_raw(draft[l].log_probs), tokens = upload_raw(draft[l].tokens);
    TreeGrowParams params = grow_params(shape, l, grower);
    params.log_probs = log_probs.as<float>();
    params.tokens = tokens.as<int32_t>();
    tree_grow(params, stream());
    const auto width = static_cast<size_t>(params.width);
    Frontier frontier{fetch<float>(grower.frontier[1]),
                      fetch<int32_t>(grower.frontier[2]),
                      fetch<int32_t>(grower.frontier[3]),
                      fetch<int32_t>(grower.frontier[4]),
                      {}};
    const std::vector<int32_t> path = fetch<int32_t>(grower.path);
    const size_t length = l + 1;
    frontier.scores.resize(width);
    for (auto* values : {&frontier.tokens, &frontier.parent_rows, &frontier.positions}) values->resize(width);
    for (size_t slot = 0; slot < width; ++slot) {
      const auto begin = path.begin() + static_cast<int64_t>(slot) * grower.stride;
      frontier.paths.emplace_back(begin, begin + static_cast<int64_t>(length));
    }
    ASSERT_EQ(frontier, plain.frontiers[l]) << what << ": level " << l;
  }
  const auto progress = fetch<TreeProgress>(grower.progress)[0];
  const size_t levels = shape.threshold >= 0 ? plain.opt_levels() : shape.levels.size();
  ASSERT_EQ(progress.levels, static_cast<int32_t>(levels)) << what;
  ASSERT_NEAR(progress.expected, plain.expected(levels), 1e-4) << what;
  for (int64_t nodes : {shape.nodes, std::max<int64_t>(1, shape.nodes / 3), int64_t{1}}) {
    const Target target(nodes, grower.stride, make);
    tree_select({.candidates = grower.candidates(),
                 .progress = grower.progress.as<TreeProgress>(),
                 .root_token = grower.root_token.as<int32_t>(),
                 .root_position = grower.root_position.as<int32_t>(),
                 .slot_shift = grower.slot_shift.as<int32_t>(),
                 .out = target.rows(),
                 .nodes = nodes},
                stream());
    const auto column = [&](size_t i) { return fetch<int32_t>(target.arrays[i]); };
    Selected selected{fetch<int32_t>(target.count)[0], column(0), column(1), column(2), column(4), column(5),
                      fetch<float>(target.arrays[3]),  {}};
    const std::vector<int32_t> path = fetch<int32_t>(target.path);
    for (size_t node = 0; node < selected.depths.size(); ++node) {
      const auto begin = path.begin() + static_cast<int64_t>(node) * target.stride;
      ASSERT_LT(selected.depths[node], target.stride);
      selected.paths.emplace_back(begin, begin + selected.depths[node] + 1);
    }
    Selected expected = plain.select(levels, nodes);
    while (expected.tokens.size() < static_cast<size_t>(nodes)) {  // rows beyond the tree repeat the root
      expected.paths.push_back({static_cast<int32_t>(expected.tokens.size())});
      expected.tokens.push_back(kRootToken);
      expected.parents.push_back(-1);
      expected.depths.push_back(0);
      expected.scores.push_back(0.0f);
      expected.positions.push_back(kRootPosition);
      expected.draw_positions.push_back(kRootPosition + 1);
    }
    ASSERT_EQ(selected.parents, expected.parents) << what << ": " << nodes << " nodes";
    ASSERT_EQ(selected, expected) << what << ": " << nodes << " nodes";
    ASSERT_EQ(fetch<int32_t>(target.committed)[0], kRootPosition);
    std::vector<int32_t> slots = expected.positions;
    for (int32_t& slot : slots) slot = std::max(slot + kSlotShift, kLeastSlot);
    ASSERT_EQ(column(6), slots) << what << ": " << nodes << " nodes";
  }
}

constexpr Values kAllValues[] = {Values::kSmooth, Values::kFewKinds, Values::kEqual, Values::kImpossible};

TEST_P(DraftTreeTest, Eagle2) {
  for (const char* text : {"eagle2", "eagle2:8,3,10", "eagle2:32,8,4", "eagle2:128,6,10", "eagle2:128,1,64",
                           "eagle2:100,40,2", "eagle2:2,0,1"}) {
    for (Values values : kAllValues) {
      for (uint64_t seed : {1, 2}) {
        const TreeShape shape = *parse_tree(text);
        expect_same(shape, random_draft(shape, values, seed), false, str(text, " of kind ", int(values)));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(DraftTreeTest, OptTree) {
  for (const char* text : {"opt", "opt:51,10,0", "opt:128,5,0.9", "opt:6,4,0.3"}) {
    for (Values values : kAllValues) {
      for (uint64_t seed = 1; seed <= (testing::kSanitized ? 1 : 2); ++seed) {
        const TreeShape shape = *parse_tree(text);
        expect_same(shape, random_draft(shape, values, seed), false, str(text, " of kind ", int(values)));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(DraftTreeTest, BeamsAndChains) {
  for (const char* text : {"beams:4,16,16,16,16", "beams:64,63", "beams:1,2,3,4,5,6,7,8", "chain:1", "chain:5"}) {
    for (Values values : kAllValues) {
      const TreeShape shape = *parse_tree(text);
      const Draft draft = random_draft(shape, values, 9);
      expect_same(shape, draft, true, str(text, " of kind ", int(values)));
      TreeShape cut = shape;
      cut.nodes = shape.nodes / 2 + 1;
      expect_same(cut, draft, true, str(text, ", cut"));
      if (HasFatalFailure()) return;
    }
  }
}

// A tree may ask for more nodes than there are candidates.
TEST_P(DraftTreeTest, FewerCandidatesThanNodes) {
  TreeShape shape = *parse_tree("eagle2:60,1,3");
  ASSERT_EQ(shape.nodes, 13);
  shape.nodes = 40;
  expect_same(shape, random_draft(shape, Values::kSmooth, 1), false, "12 candidates for 40 nodes");
}

// A level that follows the last one that counts changes the tree no more, whatever its scores.
TEST_P(DraftTreeTest, LevelsAfterTheStopDoNotCount) {
  TreeShape shape = *parse_tree("opt:8,4,0.5");
  Draft draft = random_draft(shape, Values::kSmooth, 1);
  for (float& value : draft[0].log_probs) value = std::log(0.06f);  // 0.42 in all
  for (size_t l = 1; l < 4; ++l) {
    for (float& value : draft[l].log_probs) value = 0.0f;
  }
  const PlainTree plain(shape, draft, false);
  EXPECT_EQ(plain.opt_levels(), 1u);
  expect_same(shape, draft, false, "stopped after a level");
}

// Log-probabilities that cannot be: a positive one counts as 0, a NaN as -inf; the tree stays closed.
TEST_P(DraftTreeTest, ScoresNeverGrow) {
  const TreeShape shape = *parse_tree("eagle2:20,2,4");
  Draft odd = random_draft(shape, Values::kSmooth, 8), even = odd;
  for (size_t l = 0; l < odd.size(); ++l) {
    for (size_t i = 0; i < odd[l].log_probs.size(); i += 4) {
      odd[l].log_probs[i] = 1e-7f;
      even[l].log_probs[i] = 0.0f;
      odd[l].log_probs[i + 3] = std::numeric_limits<float>::quiet_NaN();
      even[l].log_probs[i + 3] = -kInfinity;
    }
  }
  std::vector<TreeProgress> progress;
  for (const Draft& draft : {odd, even}) {
    Grower grower(
        shape, [this](uint64_t bytes) { return output(bytes); },
        [this](const std::vector<int32_t>& values) { return upload_raw(values); });
    for (size_t l = 0; l < draft.size(); ++l) {
      const DeviceArray log_probs = upload_raw(draft[l].log_probs), tokens = upload_raw(draft[l].tokens);
      TreeGrowParams params = grow_params(shape, l, grower);
      params.log_probs = log_probs.as<float>();
      params.tokens = tokens.as<int32_t>();
      tree_grow(params, stream());
      stream().synchronize();
    }
    progress.push_back(fetch<TreeProgress>(grower.progress)[0]);
  }
  EXPECT_EQ(std::memcmp(&progress[0], &progress[1], sizeof(TreeProgress)), 0);
  expect_same(shape, even, false, "the same, made possible");
}

// ---- The golden tree ------------------------------------------------------------------------------------------------

// The golden tree again from its own scores: a level's frontier are its best nodes, and what the draft said of their
// other children is made unlikely.
TEST_P(DraftTreeTest, GoldenTreeAgain) {
  const auto golden = testing::read_golden(HEADRACE_TEST_DATA "/eagle3/golden/tree.safetensors");
  const std::vector<int32_t> tokens = golden.ids("tree_tokens"), parents = golden.ids("tree_parents");
  const std::vector<float>& scores = golden.floats.at("tree_scores");
  const TreeShape shape = *parse_tree("eagle2");
  ASSERT_EQ(tokens.size(), static_cast<size_t>(shape.nodes));
  std::vector<int32_t> frontier = {0};
  Draft draft;
  for (const TreeLevel& level : shape.levels) {
    Level made;
    std::vector<int32_t> children;
    for (int64_t row = 0; row < level.rows; ++row) {
      const int32_t parent = static_cast<size_t>(row) < frontier.size() ? frontier[static_cast<size_t>(row)] : -2;
      int64_t count = 0;
      for (size_t node = 1; node < tokens.size(); ++node) {
        if (parents[node] != parent) continue;
        children.push_back(static_cast<int32_t>(node));
        made.tokens.push_back(tokens[node]);
        made.log_probs.push_back(scores[node] - scores[static_cast<size_t>(parent)]);
        ++count;
      }
      ASSERT_LE(count, level.branch);
      for (; count < level.branch; ++count) {
        made.tokens.push_back(-1);
        made.log_probs.push_back(-100.0f);
      }
    }
    std::stable_sort(children.begin(), children.end(), [&](int32_t a, int32_t b) {
      return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    children.resize(std::min(children.size(), static_cast<size_t>(level.width)));
    frontier = children;
    draft.push_back(std::move(made));
  }
  expect_same(shape, draft, false, "golden");
  const Selected tree = PlainTree(shape, draft, false).select(shape.levels.size(), shape.nodes);
  EXPECT_EQ(tree.parents, parents);
  EXPECT_TRUE(std::equal(tokens.begin() + 1, tokens.end(), tree.tokens.begin() + 1));
  for (size_t node = 0; node < scores.size(); ++node) EXPECT_NEAR(tree.scores[node], scores[node], 1e-5);
}

// ---- Acceptance -----------------------------------------------------------------------------------------------------

TEST_P(DraftTreeTest, AcceptsWhatTheHostAccepts) {
  std::mt19937 random(1);
  const DeviceArray out = output(sizeof(TreeAcceptance));
  int64_t longest = 0;
  for (int round = 0; round < 400; ++round) {
    const auto kinds = 1 + random() % 4;
    Tree tree;
    tree.reset(static_cast<int32_t>(random() % kinds));
    const auto size = static_cast<int64_t>(1 + random() % kMaxTreeNodes);
    while (tree.size() < size) {  // a chain now and then, siblings alike now and then
      const auto parent = round % 8 != 0 && random() % 3 == 0 ? random() % static_cast<uint32_t>(tree.size())
                                                              : static_cast<uint32_t>(tree.size() - 1);
      tree.add(static_cast<int32_t>(random() % kinds), static_cast<int32_t>(parent));
    }
    std::vector<int32_t> samples;
    for (int64_t i = 0; i < size; ++i) samples.push_back(static_cast<int32_t>(random() % kinds));
    Acceptance expected;
    accept(tree, samples, &expected);
    // Rows beyond the tree, as tree_select leaves them.
    const int64_t rows = std::min(kMaxTreeNodes, size + static_cast<int64_t>(random() % 3));
    tree.tokens.resize(static_cast<size_t>(rows), tree.tokens[0]);
    tree.parents.resize(static_cast<size_t>(rows), -1);
    samples.resize(static_cast<size_t>(rows), samples[0]);
    const DeviceArray tokens = upload_raw(tree.tokens), parents = upload_raw(tree.parents),
                      samples_array = upload_raw(samples);
    tree_accept({.tokens = tokens.as<int32_t>(),
                 .parents = parents.as<int32_t>(),
                 .samples = samples_array.as<int32_t>(),
                 .out = out.as<TreeAcceptance>(),
                 .nodes = rows},
                stream());
    const auto accepted = fetch<TreeAcceptance>(out)[0];
    ASSERT_EQ(std::vector<int32_t>(accepted.nodes, accepted.nodes + accepted.count), expected.nodes) << round;
    ASSERT_EQ(accepted.next, expected.next);
    for (int32_t i = 0; i < accepted.count; ++i) {
      ASSERT_EQ(accepted.tokens[i], samples[static_cast<size_t>(accepted.nodes[i])]);
    }
    longest = std::max<int64_t>(longest, accepted.count);
  }
  EXPECT_GT(longest, 64);
}

}  // namespace
}  // namespace headrace
