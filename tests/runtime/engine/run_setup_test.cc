// What a run is settled to be: how many tokens may pend follows from the plan of the run's own session, whatever the
// budgets, and asking for it takes nothing.
#include "runtime/engine/run_setup.h"

#include <gtest/gtest.h>

#include "offload/device/dry_run_device.h"
#include "runtime/draft/open/open_draft.h"
#include "runtime/engine/engine.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "runtime/session/session.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

constexpr int64_t kPrompt = 16384;

// A model of 1B on a device of paper, with all of its memory free or less.
class OnPaper {
 public:
  explicit OnPaper(Backend backend, SpecType spec = SpecType::kNone)
      : device_(open_dry_run_device(
            {.name = "paper", .backend = backend, .vram_bytes = 64 * kGiB, .host_bytes = 64 * kGiB})),
        checkpoint_(make_random_checkpoint("llama-3.2-1b", find_shape("llama-3.2-1b").config, 0)),
        weights_(Weights::reserve(*checkpoint_, *device_, {checkpoint_->natural_dtype()})),
        draft_(open_draft({.type = spec}, *device_, checkpoint_->config(), weights_)),
        compute_(device_->make_stream("compute", StreamRole::kCompute)) {}

  Device& device() { return *device_; }
  RowShape rows() const {
    return row_shape(checkpoint_->config(), checkpoint_->natural_dtype(), checkpoint_->natural_dtype());
  }
  RunContext context() { return {options_, *device_, *compute_, checkpoint_->config(), weights_, draft_.get()}; }
  // All but so much of the device's memory is somebody else's.
  MemoryBudget::Reservation leave(uint64_t bytes) {
    return device_->vram().reserve(device_->vram().free_bytes() - bytes, "others");
  }
  RunSetup settled(const GenerateOptions& run, PrefixRun* prefix = nullptr, MemoryPlan* plan = nullptr) {
    RunSetup setup = resolve_options(context(), kPrompt, run);
    setup.session.prefix = prefix;
    const SessionPlan settled = finalize(context(), run, &setup);
    if (plan != nullptr) *plan = settled.memory;
    return setup;
  }
  // Of the same run, planned again.
  MemoryPlan session_plan(const RunSetup& setup) {
    return plan_session(*device_, *compute_, checkpoint_->config(), weights_, setup.session).memory;
  }

 private:
  const EngineOptions options_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Checkpoint> checkpoint_;
  const Weights weights_;
  const std::unique_ptr<DraftModel> draft_;
  const std::unique_ptr<Stream> compute_;
};

ModelConfig testing_config(int64_t vocab) {
  ModelConfig config = open_checkpoint(testing::tiny_model("llama31"))->config();
  config.vocab = vocab;
  config.end_ids.clear();
  return config;
}

GenerateOptions lossless(std::optional<KvMode> kv = std::nullopt) {
  GenerateOptions run{.max_tokens = 256, .kv = kv};
  run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 2048};
  return run;
}

void expect_rows_of(const RunSetup& setup, const RunSetup& expected) {
  EXPECT_EQ(setup.pending, expected.pending);
  EXPECT_EQ(setup.session.pass_rows, expected.session.pass_rows);
  EXPECT_EQ(setup.session.grow_rows, expected.session.grow_rows);
  EXPECT_EQ(setup.draft_run.pass_nodes, expected.draft_run.pass_nodes);
}

// Budgets from too little for anything to room for all, in steps of a 32nd of the KV cache.
TEST(RunSetup, PendsByWhatItsOwnSessionPlans) {
  for (const SpecType spec : {SpecType::kNone, SpecType::kNgram}) {
    OnPaper card(Backend::kCuda, spec);
    const RunSetup few = card.settled(lossless(KvMode::kDevice)), many = card.settled(lossless(KvMode::kHost));
    ASSERT_LT(few.session.pass_rows, many.session.pass_rows);
    const MemoryPlan whole = card.session_plan(few);
    const uint64_t step = whole.kv_bytes() / 32;
    int resident = 0, streaming = 0, refused = 0;
    for (uint64_t bytes = step; bytes < whole.vram_bytes + 8 * step; bytes += step) {
      SCOPED_TRACE(str(spec_type_name(spec), ", ", format_bytes(bytes)));
      const MemoryBudget::Reservation others = card.leave(bytes);
      try {
        MemoryPlan plan;
        const RunSetup setup = card.settled(lossless(), nullptr, &plan);
        expect_rows_of(setup, plan.ring_slots > 0 ? many : few);
        EXPECT_EQ(plan.to_string(), card.session_plan(setup).to_string());
        ++(plan.ring_slots > 0 ? streaming : resident);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kDoesNotFit) << error.what();
        ++refused;
      }
    }
    EXPECT_GT(resident, 3);
    EXPECT_GT(streaming, 3);
    EXPECT_GT(refused, 0);
  }
}

// There both tiers are one memory, and passes stream where they are told to.
TEST(RunSetup, PendsByTheModeOnACpu) {
  OnPaper cpu(Backend::kCpu);
  const RunSetup few = cpu.settled(lossless(KvMode::kDevice)), many = cpu.settled(lossless(KvMode::kHost));
  EXPECT_LT(few.session.pass_rows, many.session.pass_rows);
  EXPECT_EQ(cpu.session_plan(few).ring_slots, 0);
  EXPECT_GT(cpu.session_plan(many).ring_slots, 0);
  expect_rows_of(cpu.settled(lossless()), few);
}

TEST(RunSetup, TakesNothing) {
  OnPaper card(Backend::kCuda, SpecType::kNgram);
  MemoryBudget &vram = card.device().vram(), &host = card.device().host_mem();
  vram.reset_peak();
  host.reset_peak();
  const uint64_t vram_bytes = vram.used_bytes(), host_bytes = host.used_bytes();
  const RunSetup setup = card.settled(lossless());
  EXPECT_EQ(vram.peak_bytes(), vram_bytes);
  EXPECT_EQ(host.peak_bytes(), host_bytes);
}

// What a saved prefix takes is asked about with the rest: by a host that has room for the run, and not for both.
TEST(RunSetup, CountsASavedPrefixAsTheSessionDoes) {
  const TemporaryFolder folder;
  OnPaper card(Backend::kCuda);
  PrefixStore store({.folder = folder / "cache"});
  const std::vector<int32_t> prompt = testing::made_up_ids(kPrompt, 512);
  PrefixRun prefix(store, {.shape = card.rows(), .model = "paper", .prompt = prompt});
  ASSERT_GT(prefix.pinned_bytes(Backend::kCuda), kPageBytes);
  MemoryBudget& host = card.device().host_mem();
  const uint64_t need = card.session_plan(card.settled(lossless())).host_total_bytes;
  const MemoryBudget::Reservation others = host.reserve(host.free_bytes() - need - kPageBytes, "others");
  card.settled(lossless());
  EXPECT_THROW(card.settled(lossless(), &prefix), Error);
}

TEST(RunSetup, TakesWhatTheRunAsksFor) {
  OnPaper card(Backend::kCuda);
  GenerateOptions run = lossless();
  run.pending = PendingTreeLimits{.width = 8, .grown = 64, .nodes = 64};
  const RunSetup fixed = card.settled(run);
  EXPECT_EQ(fixed.pending, *run.pending);
  EXPECT_EQ(fixed.session.grow_rows, 8);
  run.verify->mode = VerifyMode::kApproximate;
  EXPECT_EQ(card.settled(run).pending.width, 0);
  run.verify->mode = VerifyMode::kFull;
  const RunSetup full = card.settled(run);
  EXPECT_EQ(full.session.pass_rows, 1);
  EXPECT_FALSE(full.session.partial_on());
}

// Whether there is something to decide or not.
TEST(RunSetup, RefusesWhatDoesNotFit) {
  OnPaper card(Backend::kCuda);
  const MemoryBudget::Reservation others = card.leave(kMiB);
  GenerateOptions run = lossless();
  EXPECT_THROW(card.settled(run), Error);
  run.pending = PendingTreeLimits{.width = 8, .grown = 64, .nodes = 64};
  EXPECT_THROW(card.settled(run), Error);
}

// Where there are fewer tokens than a node's children are ranked among, pending tokens are a chain.
TEST(RunSetup, AVocabularyOfAFewTokensHasNoTree) {
  for (const int64_t vocab : {1, 3, 7, 8}) {
    ModelConfig config = testing_config(vocab);
    EngineOptions options;
    options.model = "small";
    options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
    options.want_tokenizer = false;
    options.dtype = DType::kF32;
    Engine engine(options, make_random_checkpoint("small", config, 3));
    const std::vector<int32_t> prompt(400, 0);
    GenerateOptions run{.max_tokens = 40, .sampling = {.temperature = 0.9f, .seed = 2}, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    const std::vector<int32_t> plain = engine.generate(prompt, run, nullptr).token_ids;
    run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 64};
    for (const int64_t interval : {int64_t{8}, kAutoInterval}) {
      run.verify->interval = interval;
      EXPECT_EQ(engine.generate(prompt, run, nullptr).token_ids, plain) << vocab << " every " << interval;
    }
  }
}

}  // namespace
}  // namespace headrace
