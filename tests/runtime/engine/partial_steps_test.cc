// Partial verification: what partial steps see, and what they move (docs/design.md, section 8).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::LoadedModel;
using testing::Session;

Tree chain(const std::vector<int32_t>& tokens) {
  Tree tree;
  tree.reset(tokens.front());
  for (size_t i = 1; i < tokens.size(); ++i) tree.add(tokens[i], static_cast<int32_t>(i) - 1);
  return tree;
}

// On a device, of a model whose layers all have rows, or most of them a recurrent state.
using PartialCase = std::tuple<DeviceChoice, const char*>;
class PartialSteps : public ::testing::TestWithParam<PartialCase> {
 protected:
  static constexpr int64_t kPrompt = 640;
  const LoadedModel model{testing::tiny_model(std::get<1>(GetParam())), DType::kF32, std::get<0>(GetParam())};
  const int32_t vocab = static_cast<int32_t>(model.checkpoint->config().vocab);

  std::unique_ptr<Session> session(int64_t blocks, KvMode kv = KvMode::kDevice, int64_t window = kTailWindow) {
    return session(PartialOptions{.shape = {.blocks = blocks, .window = window}}, kv, DType::kF32, DType::kF32);
  }
  // With as many blocks as there are between the sinks and a window of so many rows.
  std::unique_ptr<Session> with_all_blocks(KvMode kv, int64_t window) {
    const PartialShape shape{.blocks = 1, .window = window};
    return session((shape.window_begin(kPrompt, 0) - kSinkRows) / kSelectRows, kv, window);
  }
  std::unique_ptr<Session> session(const PartialOptions& partial, KvMode kv, DType k_type, DType v_type) {
    SessionOptions options = model.options(kPrompt, 300);
    options.kv = kv;
    options.k_type = k_type;
    options.v_type = v_type;
    options.pass_rows = 40;
    options.partial = partial;
    return model.session(options);
  }

  void see_the_full_kv_after_a_refresh(int64_t window);

  // The largest difference of two passes' logits.
  static float distance(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    float most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
    return most;
  }
};

// Where the blocks that are chosen are all there are, a partial step sees what a full one sees: the first, and those
// behind pending rows, to the end of what may be pending.
TEST_P(PartialSteps, WithAllBlocksSeeTheFullKv) {
  const std::vector<int32_t> ids = testing::made_up_ids(kPrompt, vocab), more = testing::made_up_ids(200, vocab, 7);
  for (const auto& [kv, window] : {std::pair(KvMode::kDevice, int64_t{256}), std::pair(KvMode::kHost, int64_t{256}),
                                   std::pair(KvMode::kHost, int64_t{64})}) {
    const auto partial = with_all_blocks(kv, window), full = session(0, kv);
    ASSERT_EQ(partial->layout().partial_from(), kPrompt);
    EXPECT_EQ(full->layout().partial_from(), 0);
    partial->prefill(ids, nullptr, nullptr);
    full->prefill(ids, nullptr, nullptr);
    ASSERT_TRUE(partial->partial_ready());
    for (size_t row = 0; row + 10 <= static_cast<size_t>(kMaxPending); row += 10) {
      const std::vector<int32_t> next(more.begin() + static_cast<int64_t>(row),
                                      more.begin() + static_cast<int64_t>(row) + 10);
      Tree tree = chain(next);
      tree.add(5, 3);  // beside the path that is kept
      partial->verify(tree, StepMode::kPartial);
      const std::vector<float> seen = partial->logits(11);
      full->verify(tree);
      EXPECT_LT(distance(seen, full->logits(11)), 1e-4f) << row;
      const Acceptance path{.nodes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, .next = 0};
      partial->commit(path);
      full->commit(path);
      EXPECT_EQ(partial->rows(), kPrompt);
      EXPECT_EQ(partial->pending_rows(), static_cast<int64_t>(row) + 10);
    }
  }
}

// The same after a refresh in the middle of a run, whose commit has moved the window: blocks that have since been
// completed behind the chosen ones are seen as window.
TEST_P(PartialSteps, SeeTheFullKvAfterARefresh) { see_the_full_kv_after_a_refresh(kTailWindow); }
TEST_P(PartialSteps, SeeTheFullKvAfterARefreshWithAShortWindow) { see_the_full_kv_after_a_refresh(128); }

void PartialSteps::see_the_full_kv_after_a_refresh(int64_t window) {
  const std::vector<int32_t> ids = testing::made_up_ids(kPrompt, vocab), more = testing::made_up_ids(280, vocab, 9);
  const auto at = [&](int64_t first, int64_t count) {
    return std::vector<int32_t>(more.begin() + first, more.begin() + first + count);
  };
  const auto path = [](int64_t count) {
    Acceptance acceptance{.nodes = {}, .next = 0};
    for (int32_t i = 0; i < count; ++i) acceptance.nodes.push_back(i);
    return acceptance;
  };
  const auto partial = with_all_blocks(KvMode::kHost, window), full = session(0, KvMode::kHost);
  partial->prefill(ids, nullptr, nullptr);
  full->prefill(ids, nullptr, nullptr);
  const auto step = [&](int64_t first, int64_t count, StepMode mode) {
    partial->verify(chain(at(first, count)), mode);
    const std::vector<float> seen = partial->logits(count);
    partial->commit(path(count));
    return seen;
  };
  step(0, 30, StepMode::kPartial);
  step(30, 30, StepMode::kPartial);
  // 60 are pending; the refresh takes 40 of them and 5 others: what was rejected leaves no trace.
  std::vector<int32_t> judged = at(0, 40);
  for (const int32_t token : at(200, 20)) judged.push_back(token);
  std::vector<int32_t> kept(judged.begin(), judged.begin() + 45);
  Tree tree = chain(judged);
  partial->verify(tree, StepMode::kRefresh);
  const std::vector<float> seen = partial->logits(60);
  full->verify(chain(at(0, 40)));
  const std::vector<float> first = full->logits(40);
  EXPECT_EQ(std::vector<float>(seen.begin(), seen.begin() + 40 * vocab), first) << "a refresh is a full step";
  full->commit(path(40));
  full->verify(chain(at(200, 5)));
  full->commit(path(5));
  partial->commit(path(45));
  EXPECT_EQ(partial->rows(), kPrompt + 45);
  EXPECT_EQ(partial->pending_rows(), 0);
  for (int64_t row = 100; row < 200; row += 20) {
    const std::vector<float> now = step(row, 20, StepMode::kPartial);
    full->verify(chain(at(row, 20)));
    EXPECT_LT(distance(now, full->logits(20)), 1e-4f) << row;
    full->commit(path(20));
  }
}

// With few blocks a partial step sees something else, and not nothing: the guard of the two tests above.
TEST_P(PartialSteps, WithFewBlocksSeeLess) {
  const std::vector<int32_t> ids = testing::made_up_ids(kPrompt, vocab);
  const auto partial = session(2), full = session(0);
  partial->prefill(ids, nullptr, nullptr);
  full->prefill(ids, nullptr, nullptr);
  partial->verify(chain({5, 6}), StepMode::kPartial);
  full->verify(chain({5, 6}));
  const float moved = distance(partial->logits(2), full->logits(2));
  EXPECT_GT(moved, 1e-4f);
  EXPECT_TRUE(std::isfinite(moved));
}

// A shorter window leaves out rows that a longer one has.
TEST_P(PartialSteps, WithAShortWindowSeeLess) {
  const std::vector<int32_t> ids = testing::made_up_ids(kPrompt, vocab);
  const auto seen = [&](int64_t window) {
    const auto run = session(2, KvMode::kDevice, window);
    run->prefill(ids, nullptr, nullptr);
    run->verify(chain({5, 6}), StepMode::kPartial);
    return run->logits(2);
  };
  const std::vector<float> longest = seen(256), shortest = seen(64);
  EXPECT_GT(distance(longest, shortest), 1e-4f);
  EXPECT_GT(distance(seen(128), shortest), 1e-4f);
}

// The tree's queries and no others: the first step is a refresh, and pending tokens before the tree select no blocks.
TEST_P(PartialSteps, SelectByTheTreeAlone) {
  const std::vector<int32_t> ids = testing::made_up_ids(kPrompt, vocab), more = testing::made_up_ids(20, vocab, 7);
  const auto seen = [&](BlockQueries queries) {
    const auto run = session({.shape = {.blocks = 3}, .score = BlockScore::kSpecPv, .queries = queries}, KvMode::kHost,
                             DType::kF32, DType::kF32);
    run->prefill(ids, nullptr, nullptr);
    EXPECT_EQ(run->partial_ready(), queries == BlockQueries::kRecent);
    run->verify(chain({5, 6}), StepMode::kRefresh);
    run->commit({.nodes = {0, 1}, .next = 0});
    EXPECT_TRUE(run->partial_ready());
    Acceptance path{.nodes = {}, .next = 0};
    for (int32_t i = 0; i < 20; ++i) path.nodes.push_back(i);
    run->verify(chain(more), StepMode::kPartial);
    run->commit(path);
    std::vector<int32_t> judged = more;
    judged.push_back(7);
    run->verify(chain(judged), StepMode::kRefresh);
    path.nodes.push_back(20);
    run->commit(path);
    run->verify(chain({8, 9}), StepMode::kPartial);
    return run->logits(2);
  };
  EXPECT_GT(distance(seen(BlockQueries::kRecent), seen(BlockQueries::kTree)), 1e-4f);
}

// Every way of choosing, and caches whose keys and values are of different types: all blocks are the full KV after a
// refresh, and few are not.
TEST_P(PartialSteps, ChooseByEveryScoreFromEveryCache) {
  const std::vector<int32_t> ids = testing::made_up_ids(kPrompt, vocab);
  const auto said = [&](const PartialOptions& options, DType k_type, DType v_type) {
    const auto run = session(options, KvMode::kHost, k_type, v_type);
    run->prefill(ids, nullptr, nullptr);
    const StepMode seen = options.shape.blocks > 0 ? StepMode::kPartial : StepMode::kFull;
    run->verify(chain({5, 6}), options.shape.blocks > 0 ? StepMode::kRefresh : StepMode::kFull);
    run->commit({.nodes = {0, 1}, .next = 0});
    run->verify(chain({7, 8}), seen);
    return run->logits(2);
  };
  const int64_t all = (tail_begin(kPrompt) - kSinkRows) / kSelectRows;
  for (const auto& [k_type, v_type] : {std::pair(DType::kF16, DType::kBF16), std::pair(DType::kF32, DType::kF16),
                                       std::pair(DType::kInt8, DType::kInt8)}) {
    const std::vector<float> full = said({}, k_type, v_type);
    for (const BlockScore score : {BlockScore::kQuest, BlockScore::kSpecPv, BlockScore::kRecent}) {
      for (const BlockReduce reduce : {BlockReduce::kMean, BlockReduce::kMax, BlockReduce::kLast}) {
        EXPECT_LT(distance(said({{all}, score, reduce}, k_type, v_type), full), 1e-4f);
        const float few = distance(said({{3}, score, reduce}, k_type, v_type), full);
        EXPECT_GT(few, 1e-4f);
        EXPECT_TRUE(std::isfinite(few));
      }
    }
  }
}

// What is committed by a step over the full KV that was no refresh is in no window: there is no partial step before the
// next refresh.
TEST_P(PartialSteps, NeedARefreshAfterAFullStep) {
  const auto partial = session(8);
  partial->prefill(testing::made_up_ids(kPrompt, vocab), nullptr, nullptr);
  ASSERT_TRUE(partial->partial_ready());
  partial->verify(chain({5}));
  partial->commit({.nodes = {0}, .next = 0});
  EXPECT_FALSE(partial->partial_ready());
  partial->verify(chain({6}), StepMode::kRefresh);
  partial->commit({.nodes = {0}, .next = 0});
  EXPECT_TRUE(partial->partial_ready());
}

// No KV row crosses the link in a partial step: what crosses is the step's inputs and samples, a few KiB.
TEST_P(PartialSteps, MoveNoRows) {
  const auto partial = session(8, KvMode::kHost);
  partial->prefill(testing::made_up_ids(kPrompt, vocab), nullptr, nullptr);
  partial->verify(chain({5}), StepMode::kPartial);
  partial->commit({.nodes = {0}, .next = 0});
  const uint64_t before = model.device->bytes_over(Link::kHostToDevice);
  partial->verify(chain({5, 6, 7}), StepMode::kPartial);
  partial->commit({.nodes = {0, 1, 2}, .next = 0});
  EXPECT_LT(model.device->bytes_over(Link::kHostToDevice) - before, 64 * kKiB);
}

// The bits of a pending token are those of its path: whether it became pending with the tokens before it or after them,
// in a chain or in a tree, and wherever a tree's passes start. So a refresh finds the same in all of them.
TEST_P(PartialSteps, HaveTheBitsOfThePathHoweverItBecamePending) {
  constexpr int64_t kChain = 40;
  const std::vector<int32_t> ids = testing::made_up_ids(kPrompt, vocab);
  Tree tree = chain(testing::made_up_ids(kChain, vocab, 7));
  for (const int32_t parent : {0, 3, 38, 39, 40, 42, 17}) tree.add(parent + 11, parent);
  const int64_t nodes = tree.size();
  const auto begun = [&] {
    SessionOptions options = model.options(kPrompt, 300);
    options.pass_rows = options.drawn_rows = options.grow_rows = nodes;
    options.partial.shape.blocks = 4;
    auto run = model.session(options);
    run->prefill(ids, nullptr, nullptr);
    return run;
  };
  const auto once = begun();
  once->verify(tree, StepMode::kPartial);
  const std::vector<float> expected = once->logits(nodes);
  const auto expect_same = [&](const std::vector<float>& logits, int64_t first, int64_t count,
                               const std::string& what) {
    const auto from = expected.begin() + first * vocab;
    EXPECT_EQ(logits, std::vector<float>(from, from + count * vocab)) << what << ", nodes from " << first;
  };
  const auto steps = begun();
  Tree part;
  for (int64_t first = 0; first < kChain;) {
    const int64_t count = std::min<int64_t>(1 + first % 6, kChain - first);
    part = chain({tree.tokens.begin() + first, tree.tokens.begin() + first + count});
    part.add(3, 0);  // rejected
    Acceptance path{.nodes = {}, .next = 0};
    for (int32_t i = 0; i < count; ++i) path.nodes.push_back(i);
    steps->verify(part, StepMode::kPartial);
    expect_same(steps->logits(count), first, count, "a chain");
    steps->commit(path);
    first += count;
  }
  // Along the chain, from nowhere, from a node that later ones do not follow, and back to an earlier one.
  for (const std::vector<int32_t>& followed :
       {std::vector<int32_t>{-1, 4, 11, 39, 41}, {-1, -1, -1, -1, -1}, {-1, 4, 5, 38, 40}, {-1, 3, 11, 17, 44}}) {
    const auto grown = begun();
    part.reset(tree.tokens[0]);
    size_t call = 0;
    for (const int64_t end : {int64_t{5}, int64_t{12}, kChain, nodes - 2, nodes}) {
      const int64_t first = call == 0 ? 0 : part.size();
      while (part.size() < end) {
        const auto node = static_cast<size_t>(part.size());
        part.add(tree.tokens[node], tree.parents[node]);
      }
      grown->grow(part, first, followed[call++]);
      expect_same(grown->logits(end - first), first, end - first, str("a tree that follows ", followed[1]));
    }
    // Back to the committed tokens, for the next tree.
    grown->verify(tree, StepMode::kPartial);
    expect_same(grown->logits(nodes), 0, nodes, "behind a tree");
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PartialSteps,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values("llama31", "qwen35", "qwen3moe", "qwen35moe", "gptoss")),
                         [](const auto& instance) {
                           return testing::device_name(std::get<0>(instance.param)) + "_" + std::get<1>(instance.param);
                         });

}  // namespace
}  // namespace headrace
