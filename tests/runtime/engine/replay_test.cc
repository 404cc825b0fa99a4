// Steps replayed as graphs say what enqueued ones say, bit for bit, wherever the number of prefix segments changes and
// whatever the tree's size.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::LoadedModel;

struct ReplayedRun {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;
  int64_t replayed = 0;
};

// On a device, of a model whose layers all have rows, or most of them a recurrent state.
class ReplayedSteps : public ::testing::TestWithParam<std::tuple<DeviceChoice, const char*>> {
 protected:
  const LoadedModel model{testing::tiny_model(std::get<1>(GetParam())), DType::kBF16, std::get<0>(GetParam())};
  const int32_t vocab = static_cast<int32_t>(model.checkpoint->config().vocab);
  const bool cuda = std::get<0>(GetParam()) == DeviceChoice::kCuda;
};

INSTANTIATE_TEST_SUITE_P(Devices, ReplayedSteps,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values("llama31", "qwen35", "qwen3moe", "qwen35moe", "gptoss")),
                         [](const auto& given) {
                           return testing::device_name(std::get<0>(given.param)) + "_" + std::get<1>(given.param);
                         });

// Rows 480 to 900: the first and the second segment close, the prefix comes to one segment, then to two.
TEST_P(ReplayedSteps, EqualEnqueuedOnes) {
  constexpr int64_t kPrompt = 480, kTokens = 420;
  const auto say = [&](bool graphs) {
    SessionOptions options = model.options(kPrompt, kTokens);
    options.v_type = DType::kInt8;  // which is quantised between the steps
    options.sampling = {.temperature = 0.7f, .seed = 3};
    options.graphs = graphs;
    auto session = model.session(options);
    ReplayedRun said;
    said.tokens = testing::decode_plainly(*session, testing::made_up_ids(kPrompt, vocab), kTokens, &said.logits);
    said.replayed = session->replayed_steps();
    return said;
  };
  const ReplayedRun enqueued = say(false), replayed = say(true);
  EXPECT_EQ(enqueued.tokens, replayed.tokens);
  EXPECT_EQ(enqueued.logits, replayed.logits);
  EXPECT_EQ(enqueued.replayed, 0);
  EXPECT_EQ(replayed.replayed, cuda ? kTokens - 1 - 2 : 0);  // but the first of each of two keys
}

// Trees of sizes in turn, each with other tokens, parents and depths: more sizes than graphs are kept.
TEST_P(ReplayedSteps, TreesOfManySizes) {
  constexpr int64_t kPrompt = 760, kSteps = 60;  // the prefix's second segment begins on the way
  const auto say = [&](bool graphs) {
    SessionOptions options = model.options(kPrompt, 5 * kSteps);
    options.pass_rows = 40;
    options.graphs = graphs;
    auto session = model.session(options);
    ReplayedRun said;
    int32_t root = *session->prefill(testing::made_up_ids(kPrompt, vocab), nullptr, nullptr);
    uint32_t state = 1;
    const auto random = [&](uint32_t below) { return (state = state * 1664525u + 1013904223u) / 65536u % below; };
    for (int64_t step = 0; step < kSteps; ++step) {
      const int64_t nodes = step % 3 == 0 ? 40 : 1 + step % 11;
      Tree tree;
      tree.reset(root);
      while (tree.size() < nodes) {
        tree.add(static_cast<int32_t>(random(static_cast<uint32_t>(vocab))),
                 static_cast<int32_t>(random(static_cast<uint32_t>(tree.size()))));
      }
      const std::span<const int32_t> samples = session->verify(tree);
      said.tokens.insert(said.tokens.end(), samples.begin(), samples.end());
      said.logits.push_back(session->logits(nodes));
      Acceptance acceptance{.nodes = {0}, .next = samples[0]};  // and its first child, as if it had been right
      for (int32_t node = 1; node < tree.size() && acceptance.nodes.size() < 2; ++node) {
        if (tree.parents[static_cast<size_t>(node)] == 0) acceptance.nodes.push_back(node);
      }
      session->commit(acceptance);
      root = samples[static_cast<size_t>(acceptance.nodes.back())];
    }
    said.replayed = session->replayed_steps();
    return said;
  };
  const ReplayedRun enqueued = say(false), replayed = say(true);
  EXPECT_EQ(enqueued.tokens, replayed.tokens);
  EXPECT_EQ(enqueued.logits, replayed.logits);
  EXPECT_EQ(replayed.replayed > 0, cuda);
}

// A tree that grows by steps of several sizes: what each says is what one pass over the whole tree says.
TEST_P(ReplayedSteps, GrowTrees) {
  constexpr int64_t kPrompt = 760, kTrees = 4;
  const auto say = [&](bool graphs) {
    SessionOptions options = model.options(kPrompt, 100);
    options.pass_rows = 60;
    options.grow_rows = 20;
    options.partial.shape.blocks = 4;
    options.sampling = {.temperature = 0.7f, .seed = 3};
    options.graphs = graphs;
    auto session = model.session(options);
    ReplayedRun said;
    int32_t root = *session->prefill(testing::made_up_ids(kPrompt, vocab), nullptr, nullptr);
    uint32_t state = 1;
    const auto random = [&](uint32_t below) { return (state = state * 1664525u + 1013904223u) / 65536u % below; };
    for (int64_t t = 0; t < kTrees; ++t) {
      Tree tree;
      tree.reset(root);
      std::vector<int32_t> grown;
      for (const int64_t rows : {1, 3, 17, 20, 5}) {
        const int64_t first = static_cast<int64_t>(grown.size());
        while (tree.size() < first + rows) {
          tree.add(static_cast<int32_t>(random(static_cast<uint32_t>(vocab))),
                   static_cast<int32_t>(random(static_cast<uint32_t>(tree.size()))));
        }
        const Ranked ranked = session->grow(tree, first, static_cast<int32_t>(t % 2 == 0 ? first - 1 : -1));
        grown.insert(grown.end(), ranked.samples.begin(), ranked.samples.end());
        said.tokens.insert(said.tokens.end(), ranked.tokens.begin(), ranked.tokens.end());
        said.logits.emplace_back(ranked.log_probs.begin(), ranked.log_probs.end());
      }
      const std::span<const int32_t> whole = session->verify(tree, StepMode::kPartial);
      EXPECT_EQ(grown, std::vector<int32_t>(whole.begin(), whole.end())) << "tree " << t;
      said.tokens.insert(said.tokens.end(), grown.begin(), grown.end());
      const std::span<const int32_t> samples = session->verify(tree, StepMode::kRefresh);
      session->commit({.nodes = {0}, .next = samples[0]});
      root = samples[0];
    }
    said.replayed = session->replayed_steps();
    return said;
  };
  const ReplayedRun enqueued = say(false), replayed = say(true);
  EXPECT_EQ(enqueued.tokens, replayed.tokens);
  EXPECT_EQ(enqueued.logits, replayed.logits);
  EXPECT_EQ(enqueued.replayed, 0);
  // On a GPU 1, 4, 8 or 20 rows: all steps but the first of each kind, and of the whole trees all but the first.
  EXPECT_EQ(replayed.replayed, cuda ? 5 * kTrees - 4 + kTrees - 1 : 0);
}

}  // namespace
}  // namespace headrace
