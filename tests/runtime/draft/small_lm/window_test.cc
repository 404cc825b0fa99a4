// What a small model sees of its context: with a window, what it would see if the text were its first tokens and the
// last ones and nothing between (StreamingLLM section 3.2). Without layers that pass on what went before, a model of
// one layer, that is exact.
#include "runtime/draft/window.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/product/op.h"
#include "runtime/draft/small_lm/draft.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

constexpr int64_t kWindow = kMinDraftWindow;

// A model with drafts of its own, driven without a target: what was right is made up.
struct Drafter {
  std::unique_ptr<Device> device;
  std::unique_ptr<Checkpoint> checkpoint;
  Weights weights;
  std::unique_ptr<Stream> compute;

  Drafter(std::unique_ptr<Checkpoint> model, DeviceChoice choice)
      : device(open_device({.choice = choice, .threads = 2})),
        checkpoint(std::move(model)),
        weights(Weights::reserve(*checkpoint, *device, {DType::kF32})),
        compute(device->make_stream("compute", StreamRole::kCompute)) {
    weights.load(*checkpoint, *device, nullptr, nullptr);
  }

  std::unique_ptr<SimpleDraft> start(const DraftSetup& options, std::span<const int32_t> prompt) const {
    auto draft = std::make_unique<SimpleDraft>(*device, checkpoint->config(), weights, options);
    draft->allocate(*compute);
    draft->finish_prefill(prompt, nullptr, nullptr);
    return draft;
  }
};

void accept_root(Draft& draft, const Tree& tree) {
  Acceptance acceptance;
  acceptance.nodes = {0};
  draft.observe(tree, acceptance);
}

ModelConfig one_layer(bool qk_norm, bool yarn) {
  ModelConfig c;
  c.family = "llama";
  c.hidden = 64, c.vocab = 300, c.max_positions = 512;
  c.layers = same_layers(
      1, {.mixer = AttentionSpec{.heads = 4, .kv_heads = 2, .head_dim = 16, .qk_norm = qk_norm}, .ffn = {96}});
  if (yarn) {
    c.rope.scaling = RopeScaling::kYarn;
    c.rope.factor = 2;
    c.rope.original_max_positions = 256;
  }
  return c;
}

class SimpleWindow : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  static constexpr int64_t kDeep = 3;

  // The text so far is `ids`, of which the last is the root.
  static Tree propose(Draft& draft, std::span<const int32_t> ids) {
    Tree tree;
    draft.propose(ids.back(), static_cast<int64_t>(ids.size()) - 1, {.nodes = kDeep + 1, .levels = kDeep}, &tree);
    return tree;
  }

  // Walks `steps` tokens beyond a prompt, one a step, and compares every few of them with a draft that never saw more.
  void expect_as_if_cut(const ModelConfig& config, int64_t prompt, int64_t steps) {
    const Drafter model(make_random_checkpoint("one layer", config, 7), GetParam());
    const std::vector<int32_t> ids = testing::made_up_ids(prompt + steps, static_cast<int32_t>(config.vocab));
    const std::span<const int32_t> all(ids);
    DraftSetup options = {.run = {.prompt_tokens = prompt, .context_tokens = prompt + steps + kDeep},
                          .tree = chain_shape(kDeep),
                          .window = kWindow};
    const auto draft = model.start(options, all.first(static_cast<size_t>(prompt)));
    const int64_t unread = std::max<int64_t>(0, prompt - kWindow - kDraftSinkRows);
    DraftCacheShape shape;
    shape.context_rows = options.run.context_tokens - unread;
    shape.window = kWindow;
    int64_t moved = 0;
    for (int64_t end = prompt + 1; end <= prompt + steps; ++end) {
      const Tree tree = propose(*draft, all.first(static_cast<size_t>(end)));
      accept_root(*draft, tree);
      const int64_t first = shape.first_kept(end - unread);
      if ((end - prompt) % 23 != 1) continue;
      std::vector<int32_t> seen(ids.begin(), ids.begin() + std::min(end, kDraftSinkRows));
      const int64_t rest = first > 0 ? first + unread : unread + kDraftSinkRows;
      if (end > rest) seen.insert(seen.end(), ids.begin() + rest, ids.begin() + end);
      const int64_t count = static_cast<int64_t>(seen.size());
      const DraftSetup whole = {.run = {.prompt_tokens = count - 1, .context_tokens = count + kDeep},
                                .tree = chain_shape(kDeep)};
      const auto fresh = model.start(whole, std::span<const int32_t>(seen).first(seen.size() - 1));
      ASSERT_EQ(tree.tokens, propose(*fresh, seen).tokens) << "after " << end << " tokens, first row " << first;
      if (first > 0) ++moved;
    }
    EXPECT_GT(moved, 5);
  }
};

TEST_P(SimpleWindow, IsTheFirstTokensAndTheLast) {
  expect_as_if_cut(one_layer(false, false), 1000, 300);
  expect_as_if_cut(one_layer(true, false), kWindow + 20, 260);
}

// The sinks' keys are kept as they were before RoPE, whose factor is then applied once.
TEST_P(SimpleWindow, WithAFactorOnRope) { expect_as_if_cut(one_layer(false, true), 600, 300); }

// The first tokens come one by one, and not with the prompt.
TEST_P(SimpleWindow, AfterAPromptOfOneToken) { expect_as_if_cut(one_layer(true, true), 1, 620); }

// With every chunk chosen it is as if it had been shown all but what is between the last whole chunk and the window, at
// positions of the cache. Chunks of 48 rows leave something there.
TEST_P(SimpleWindow, ChosenChunksAreAsIfTheyWereAllThatThereIs) {
  constexpr int64_t kPromptTokens = 900, kSteps = 200, kChunk = 48;
  const testing::LoadedModel target(testing::tiny_model("llama31"), DType::kF32, GetParam());
  const std::vector<int32_t> ids = testing::made_up_ids(kPromptTokens + kSteps, 300);
  const std::span<const int32_t> all(ids);
  for (const bool yarn : {false, true}) {
    const Drafter model(make_random_checkpoint("one layer", one_layer(false, yarn), 7), GetParam());
    DraftSetup options = {.run = {.prompt_tokens = kPromptTokens, .context_tokens = kPromptTokens + kSteps + kDeep},
                          .tree = chain_shape(kDeep),
                          .window = kWindow};
    const ModelConfig& config = target.checkpoint->config();
    options.retrieval = {
        .shape = {.chunks = 40, .rows = kChunk},
        .context_rows = options.run.context_tokens,
        .pass_rows = kMaxTreeNodes,
        .heads = config.layers.front().attention().heads,
        .kv_heads = config.layers.front().attention().kv_heads,
        .head_dim = config.layers.front().attention().head_dim,
        .query_bytes = static_cast<uint64_t>(config.layers.front().attention().qkv_width()) * sizeof(float)};
    SimpleDraft draft(*target.device, model.checkpoint->config(), model.weights, options);
    EXPECT_TRUE(draft.reads_last_layer());
    SessionOptions run = target.options(kPromptTokens, kSteps + kDeep);
    run.draft = &draft;
    const auto session = target.session(run);
    ASSERT_TRUE(session->prefill(all.first(kPromptTokens), nullptr, nullptr));
    DraftCacheShape shape;
    shape.context_rows = options.run.context_tokens;
    shape.window = kWindow;
    int64_t compared = 0, left_out = 0;
    for (int64_t end = kPromptTokens + 1; end <= kPromptTokens + kSteps; ++end) {
      const Tree tree = propose(draft, all.first(static_cast<size_t>(end)));
      accept_root(draft, tree);
      if ((end - kPromptTokens) % 23 != 1) continue;
      const int64_t first = shape.first_kept(end), in_chunks = first / kChunk * kChunk;
      ASSERT_GT(in_chunks, 2 * kChunk);
      left_out += first - in_chunks;
      std::vector<int32_t> seen(ids.begin(), ids.begin() + in_chunks);
      seen.insert(seen.end(), ids.begin() + first, ids.begin() + end);
      const int64_t count = static_cast<int64_t>(seen.size());
      const DraftSetup whole = {.run = {.prompt_tokens = count - 1, .context_tokens = count + kDeep},
                                .tree = chain_shape(kDeep)};
      const auto fresh = model.start(whole, std::span<const int32_t>(seen).first(seen.size() - 1));
      ASSERT_EQ(tree.tokens, propose(*fresh, seen).tokens) << "after " << end << " tokens";
      ++compared;
    }
    EXPECT_GT(compared, 5);
    EXPECT_GT(left_out, 0);
  }
}

// What it was told, and after how many tokens to stop.
class Watch final : public Progress {
 public:
  explicit Watch(int64_t stop_at = INT64_MAX) : stop_at_(stop_at) {}
  void begin(std::string_view stage, std::string_view unit, int64_t total) override {
    begun = str(stage, " ", total, " ", unit);
  }
  void update(int64_t done) override {
    updates.push_back(done);
    if (done >= stop_at_) stop = true;
  }
  void end() override { ended = true; }

  std::string begun;
  std::vector<int64_t> updates;
  std::atomic<bool> stop{false};
  bool ended = false;

 private:
  const int64_t stop_at_;
};

// It reads what of the prompt the window keeps: long work on a CPU.
TEST_P(SimpleWindow, ItsOwnPrefillTellsHowFarItIsAndStopsWhenAsked) {
  const Drafter model(make_random_checkpoint("one layer", one_layer(false, false), 7), GetParam());
  const std::vector<int32_t> ids = testing::made_up_ids(500, 300);
  const DraftSetup whole = {.run = {.prompt_tokens = 500, .context_tokens = 540}, .tree = chain_shape(2)};
  for (const int64_t stop_at : {INT64_MAX, int64_t{128}}) {
    SimpleDraft draft(*model.device, model.checkpoint->config(), model.weights, whole);
    draft.allocate(*model.compute);
    Watch watch(stop_at);
    EXPECT_EQ(draft.finish_prefill(ids, &watch, &watch.stop), stop_at > 500);
    EXPECT_EQ(watch.begun, "draft prefill 500 tokens");
    EXPECT_TRUE(watch.ended);
    EXPECT_EQ(watch.updates, stop_at > 500 ? (std::vector<int64_t>{64, 128, 192, 256, 320, 384, 448, 500})
                                           : (std::vector<int64_t>{64, 128}));
  }
}

TEST_P(SimpleWindow, MemoryIsWhatWasSaidAndDoesNotGrow) {
  const Drafter model(make_random_checkpoint("one layer", one_layer(false, false), 7), GetParam());
  const auto lasting = [&](int64_t window, int64_t prompt) {
    const SimpleDraft draft(*model.device, model.checkpoint->config(), model.weights,
                            {.run = {.prompt_tokens = prompt, .context_tokens = prompt + 40},
                             .tree = beams_shape(std::vector<int64_t>{4, 8}),
                             .window = window});
    return draft.memory().lasting_bytes;
  };
  EXPECT_EQ(lasting(kWindow, 100'000), lasting(kWindow, 1000));
  EXPECT_GT(lasting(0, 100'000), lasting(0, 1000));

  SimpleDraft draft(*model.device, model.checkpoint->config(), model.weights,
                    {.run = {.prompt_tokens = 900, .context_tokens = 950}, .tree = chain_shape(2), .window = kWindow});
  const uint64_t vram = model.device->vram().used_bytes(), host = model.device->host_mem().used_bytes();
  const uint64_t products = product_workspace_bytes(*model.compute);  // the session counts it
  draft.allocate(*model.compute);
  const std::vector<int32_t> ids = testing::made_up_ids(901, 300);
  draft.finish_prefill(std::span(ids).first(900), nullptr, nullptr);
  propose(draft, ids);
  const DraftMemory said = draft.memory();
  EXPECT_LE(model.device->vram().peak_bytes() - vram, said.lasting_bytes + products);
  EXPECT_EQ(said.prefill_bytes, 0u);
  if (GetParam() == DeviceChoice::kCpu) {  // where device memory comes out of the host's
    const uint64_t on_device = model.device->vram().used_bytes() - vram;
    EXPECT_EQ(on_device, said.lasting_bytes);
    EXPECT_EQ(model.device->host_mem().used_bytes() - host - on_device, said.pinned_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SimpleWindow, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST(UsualWindow, KeepsEveryDistanceWithinTheDraftsPositions) {
  EXPECT_EQ(usual_window(512, 512, 8), 0);
  for (const int64_t positions : {400, 512, 1000, 1100}) {
    DraftCacheShape shape;
    shape.context_rows = 10'000;
    shape.window = usual_window(positions, 5000, 8);
    EXPECT_GT(shape.window, positions - 100);
    for (int64_t rows = 3000; rows < 3200; ++rows) {  // the root's row included
      EXPECT_LT(rows + 8 - (shape.first_kept(rows) - kDraftSinkRows), positions);
    }
  }
  EXPECT_EQ(usual_window(256, 300, 8), kMinDraftWindow);
  EXPECT_EQ(usual_window(100'000, 50'000, 8), 1024);
  EXPECT_EQ(usual_window(100'000, 1024, 8), 0);
}

// The share of the tokens from `first` on that the draft guesses, having read those before.
double right(const Drafter& model, std::span<const int32_t> ids, int64_t first, int64_t window) {
  const int64_t count = static_cast<int64_t>(ids.size());
  const auto draft = model.start(
      {.run = {.prompt_tokens = first, .context_tokens = count + 1}, .tree = chain_shape(1), .window = window},
      ids.first(static_cast<size_t>(first)));
  int64_t hits = 0;
  for (int64_t at = first; at + 1 < count; ++at) {
    Tree tree;
    draft->propose(ids[static_cast<size_t>(at)], at, {.nodes = 2, .levels = 1}, &tree);
    hits += tree.tokens[1] == ids[static_cast<size_t>(at) + 1] ? 1 : 0;
    accept_root(*draft, tree);
  }
  return static_cast<double>(hits) / static_cast<double>(count - first - 1);
}

// A text of SmolLM2's tokens far longer than what the small model was trained with: with the window that it gets, it
// guesses late in it as well as early, and without one it does not.
TEST(SimpleWindowModel, GuessesBeyondItsTrainingLength) {
  const char* const models = std::getenv("HEADRACE_TEST_MODELS");
  if (models == nullptr) GTEST_SKIP() << "HEADRACE_TEST_MODELS names no directory";
  const Drafter model(open_checkpoint(std::string(models) + "/small-lm"), DeviceChoice::kCpu);
  const std::vector<int32_t> ids =
      testing::read_golden(HEADRACE_TEST_DATA "/smollm2/seven-k.safetensors").ids("input_ids");
  const std::span<const int32_t> text(ids);
  const int64_t window = usual_window(model.checkpoint->config().max_positions, 6601, 1);
  ASSERT_GT(window, 0);
  const double early = right(model, text.first(1600), 1000, window),
               middle = right(model, text.first(3600), 3000, window);
  const double late = right(model, text.first(6600), 6000, window), lost = right(model, text.first(3600), 3000, 0);
  EXPECT_GT(early, 0.15);
  EXPECT_GT(late, 0.9 * early);
  EXPECT_GT(middle, 1.25 * lost);
}

}  // namespace
}  // namespace headrace
