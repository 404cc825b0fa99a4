// What a run is settled to be: how many tokens may pend follows from the plan of the run's own session, whatever the
// budgets, and asking for it takes nothing.
#include "runtime/engine/run_setup.h"

#include <gtest/gtest.h>

#include "cache/gpu_specs.h"
#include "cache/minimum_budgets.h"
#include "offload/device/dry_run_device.h"
#include "runtime/draft/open/open_draft.h"
#include "runtime/engine/engine.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "runtime/session/executor.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

constexpr int64_t kPlannedPrompt = 16384;

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
    const DType type = checkpoint_->natural_dtype();
    return row_shape(checkpoint_->config(), type, type, type);
  }
  RunContext context() {
    return {options_, *device_, *compute_, checkpoint_->config(), weights_, draft_.get(), "a model", rates};
  }
  std::optional<MachineRates> rates{};
  void cache_in(DType type) { options_.cache_type_k = options_.cache_type_v = type; }
  // All but so much of the device's memory is somebody else's.
  MemoryBudget::Reservation leave(uint64_t bytes) {
    return device_->vram().reserve(device_->vram().free_bytes() - bytes, "others");
  }
  int64_t prompt = kPlannedPrompt;
  RunSetup settled(const GenerateOptions& run, PrefixRun* prefix = nullptr, MemoryPlan* plan = nullptr) {
    RunSetup setup = resolve_options(context(), prompt, run);
    setup.session.prefix = prefix;
    const SessionPlan settled = finalize(context(), run, &setup);
    if (plan != nullptr) *plan = settled.memory;
    return setup;
  }
  // Of the same run, planned again.
  MemoryPlan session_plan(const RunSetup& setup) {
    return testing::plan_session(*device_, *compute_, checkpoint_->config(), weights_, setup.session).memory;
  }

 private:
  EngineOptions options_;
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
  EXPECT_EQ(setup.draft_run().pass_nodes, expected.draft_run().pass_nodes);
}

RunSetup with_rows_of(const RunSetup& setup, const RunSetup& other) {
  RunSetup out;
  out.session = setup.session;
  out.session.pass_rows = other.session.pass_rows;
  out.session.grow_rows = other.session.grow_rows;
  return out;
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
        const bool streams = plan.ring_slots > 0, tight = streams && setup.pending == few.pending;
        expect_rows_of(setup, streams && !tight ? many : few);
        if (tight) {
          EXPECT_THROW(card.session_plan(with_rows_of(setup, many)), DoesNotFit);
        }
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

GenerateOptions with_kind(PartialKind kind, VerifyMode mode = VerifyMode::kLossless) {
  GenerateOptions run{.max_tokens = 256};
  run.verify = VerifyOptions{.mode = mode, .partial = kind};
  return run;
}

// By a machine whose rates nobody knows, as the device's memory shrinks: blocks while the whole KV cache is on the
// device, then the most exact copy that fits, then blocks again. What is settled is what its own session plans, and a
// kind that is named is made or refused.
TEST(RunSetup, AutoTakesTheMostExactCopyThatFits) {
  OnPaper card(Backend::kCuda);
  card.prompt = 61440;
  const MemoryPlan whole = card.session_plan(card.settled(with_kind(PartialKind::kAuto)));
  ASSERT_EQ(whole.ring_slots, 0);
  const uint64_t step = whole.kv_bytes() / 16;
  const auto fits = [&](PartialKind kind) {
    try {
      EXPECT_STREQ(card.settled(with_kind(kind)).session.partial.shape.name(), partial_kind_name(kind));
      return true;
    } catch (const DoesNotFit& refused) {
      if (refused.instead()) {
        EXPECT_NO_THROW(card.settled(with_kind(*refused.instead())));
      }
      EXPECT_EQ(refused.instead().has_value(), std::string(refused.what()).starts_with("--partial-kv: "));
      return false;
    }
  };
  std::vector<std::string> chosen;
  for (uint64_t bytes = whole.vram_bytes + step; bytes > step; bytes -= step) {
    SCOPED_TRACE(format_bytes(bytes));
    const MemoryBudget::Reservation others = card.leave(bytes);
    if (!fits(PartialKind::kBlocks)) {
      EXPECT_THROW(card.settled(with_kind(PartialKind::kAuto)), DoesNotFit);
      break;
    }
    MemoryPlan plan;
    const RunSetup setup = card.settled(with_kind(PartialKind::kAuto), nullptr, &plan);
    const PartialShape& shape = setup.session.partial.shape;
    EXPECT_EQ(plan.to_string(), card.session_plan(setup).to_string());
    EXPECT_EQ(plan.partial_bytes, shape.bytes(card.rows(), setup.session.context_tokens));
    if (shape.copy) {
      EXPECT_EQ(setup.pending.width, plan.ring_slots > 0 ? 4 : 0) << "a narrow tree, or a chain";
    } else {
      EXPECT_EQ(setup.pending.width, 8);
    }
    if (plan.ring_slots > 0) {
      EXPECT_STREQ(shape.name(), fits(PartialKind::kInt8) ? "int8" : fits(PartialKind::kInt4) ? "int4" : "blocks");
    }
    if (chosen.empty() || chosen.back() != shape.name()) chosen.emplace_back(shape.name());
  }
  EXPECT_EQ(chosen, (std::vector<std::string>{"blocks", "int8", "int4", "blocks"}));
}

// Between what a chain needs and what the narrow tree needs: a chain with the same copy, neither an error nor a poorer
// copy.
TEST(RunSetup, ACopyWithoutRoomForATreeHasAChain) {
  OnPaper card(Backend::kCuda);
  card.prompt = 61440;
  GenerateOptions run = with_kind(PartialKind::kInt8);
  run.kv = KvMode::kHost;
  const auto width = [&](uint64_t bytes) -> std::optional<int64_t> {
    const MemoryBudget::Reservation others = card.leave(bytes);
    try {
      return card.settled(run).pending.width;
    } catch (const DoesNotFit&) {
      return std::nullopt;
    }
  };
  uint64_t low = 0, high = card.session_plan(card.settled(run)).vram_bytes;  // the least that fits is between
  ASSERT_EQ(width(high), 4);
  while (high - low > kPageBytes) {
    const uint64_t middle = low + (high - low) / 2;
    (width(middle) ? high : low) = middle;
  }
  EXPECT_EQ(width(high), 0);
  const MemoryBudget::Reservation others = card.leave(high);
  MemoryPlan plan;
  const RunSetup setup = card.settled(run, nullptr, &plan);
  EXPECT_GT(plan.ring_slots, 0);
  EXPECT_EQ(setup.session.pass_rows, 1);
  EXPECT_EQ(plan.to_string(), card.session_plan(setup).to_string());
  run.verify->partial = PartialKind::kAuto;
  const RunSetup by_itself = card.settled(run);
  EXPECT_STREQ(by_itself.session.partial.shape.name(), "int8");
  EXPECT_EQ(by_itself.pending.width, 0);
}

// Where the text depends on what partial steps read, memory does not decide; nor where a budget of blocks is given.
TEST(RunSetup, AutoIsBlocksWhereMemoryMustNotDecide) {
  OnPaper card(Backend::kCuda);
  GenerateOptions run = with_kind(PartialKind::kAuto, VerifyMode::kApproximate);
  run.kv = KvMode::kHost;
  EXPECT_STREQ(card.settled(run).session.partial.shape.name(), "blocks");
  run.verify->partial = PartialKind::kInt4;
  EXPECT_STREQ(card.settled(run).session.partial.shape.name(), "int4");
  EXPECT_STREQ(card.settled(lossless(KvMode::kHost)).session.partial.shape.name(), "blocks");
  run = with_kind(PartialKind::kAuto);
  run.kv = KvMode::kHost;
  EXPECT_STREQ(card.settled(run).session.partial.shape.name(), "int8");
}

// Heads of 80 cannot be rotated: a named int4 is an error that says so, and auto passes it over.
TEST(RunSetup, Int4NeedsHeadsOfAPowerOfTwo) {
  ModelConfig config = testing_config(512);
  for (LayerSpec& layer : config.layers) layer.attention().head_dim = 80;
  EngineOptions options;
  options.model = "odd";
  options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
  options.want_tokenizer = false;
  const Engine engine(options, make_random_checkpoint("odd", config, 3));
  GenerateOptions run = with_kind(PartialKind::kInt4);
  run.kv = KvMode::kHost;
  try {
    engine.plan(1000, run);
    FAIL() << "int4 with heads of 80";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_EQ(error.info().where, "--partial-kv");
    EXPECT_NE(error.info().what.find("80"), std::string::npos) << error.what();
  }
  run.verify->partial = PartialKind::kAuto;
  EXPECT_EQ(engine.plan(1000, run).partial.copy, DType::kInt8);
}

// Of those that fit, auto takes the kind that is predicted to be fastest: by an H200 a copy in int8, also of a cache in
// int8, which it has to stream; where attention reads slowly and the link is fast, blocks, of which a step reads
// little.
TEST(RunSetup, AutoTakesTheFastestKindThatFits) {
  for (const DType cache : {DType::kBF16, DType::kInt8}) {
    OnPaper card(Backend::kCuda);
    card.prompt = 61440;
    card.cache_in(cache);
    MachineRates slow = find_gpu("h200").rates();
    slow.to_device_gb_per_s = slow.kv_gb_per_s;
    slow.kv_gb_per_s /= 20;
    for (const auto& card_and_kind : {std::pair(find_gpu("h200").rates(), "int8"), {slow, "blocks"}}) {
      const MachineRates& rates = card_and_kind.first;  // clang 14 captures no structured binding
      const char* const expected = card_and_kind.second;
      card.rates = rates;
      const auto settled = [&](PartialKind kind) {
        GenerateOptions run = with_kind(kind);
        run.kv = KvMode::kHost;
        MemoryPlan plan;
        const RunSetup setup = card.settled(run, nullptr, &plan);
        return std::pair(std::string(setup.session.partial.shape.name()),
                         *predicted_tokens_per_s(run_plan(card.context(), setup, plan), rates));
      };
      const auto [name, speed] = settled(PartialKind::kAuto);
      EXPECT_EQ(name, expected) << dtype_name(cache);
      for (const PartialKind kind : {PartialKind::kInt8, PartialKind::kInt4, PartialKind::kBlocks}) {
        EXPECT_GE(speed, settled(kind).second) << dtype_name(cache) << ": " << partial_kind_name(kind);
      }
    }
  }
}

// A copy spares the link, also if its rows are those of the cache.
TEST(RunSetup, AutoMayHaveTheBitsOfTheCache) {
  ModelConfig config = testing_config(512);
  config.max_positions = 8192;
  GenerateOptions run = with_kind(PartialKind::kAuto);
  run.kv = KvMode::kHost;
  for (const int64_t head_dim : {64, 80}) {
    for (LayerSpec& layer : config.layers) layer.attention().head_dim = head_dim;
    EngineOptions options;
    options.model = "int8";
    options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
    options.want_tokenizer = false;
    options.cache_type_k = options.cache_type_v = DType::kInt8;
    const PartialShape shape = Engine(options, make_random_checkpoint("int8", config, 3)).plan(5000, run).partial;
    EXPECT_STREQ(shape.name(), "int8");
  }
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
  const std::vector<int32_t> prompt = testing::made_up_ids(kPlannedPrompt, 512);
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

// As the device's memory shrinks: full while nothing streams, then lossless, then full again where only that fits, for
// as long as a full run fits. With a draft, too.
TEST(RunSetup, VerifyAutoIsLosslessWhereItStreams) {
  for (const SpecType spec : {SpecType::kNone, SpecType::kNgram}) {
    OnPaper card(Backend::kCuda, spec);
    card.prompt = 61440;
    const auto mode = [&](VerifyMode asked, const char** note) -> std::optional<VerifyMode> {
      try {
        const RunSetup setup = card.settled(with_kind(PartialKind::kAuto, asked));
        *note = setup.verify_note;
        return setup.verify.mode;
      } catch (const DoesNotFit&) {
        return std::nullopt;
      }
    };
    const MemoryPlan whole = card.session_plan(card.settled(with_kind(PartialKind::kAuto, VerifyMode::kFull)));
    const uint64_t step = whole.kv_bytes() / 64;
    std::vector<std::string> seen;
    for (uint64_t bytes = whole.vram_bytes + step; bytes > step; bytes -= step) {
      const MemoryBudget::Reservation others = card.leave(bytes);
      const char* note = "";
      const char* none = "";
      const std::optional<VerifyMode> chosen = mode(VerifyMode::kAuto, &note);
      EXPECT_EQ(chosen.has_value(), mode(VerifyMode::kFull, &none).has_value()) << format_bytes(bytes);
      if (chosen == VerifyMode::kLossless) {
        EXPECT_EQ(mode(VerifyMode::kLossless, &none), VerifyMode::kLossless) << format_bytes(bytes);
      }
      const std::string line = chosen ? str(verify_mode_name(*chosen), *note == '\0' ? "" : ": ", note) : "refused";
      if (seen.empty() || seen.back() != line) seen.push_back(line);
    }
    EXPECT_EQ(seen, (std::vector<std::string>{"full: nothing streams", "lossless",
                                              "full: memory has no room for what partial steps read", "refused"}));
  }
}

// A card that computes attention of several queries very slowly: a refresh, which has them, would only cost time.
TEST(RunSetup, VerifyAutoIsFullWherePartialStepsArePredictedToBeSlower) {
  OnPaper card(Backend::kCuda);
  card.prompt = 61440;
  GenerateOptions run = with_kind(PartialKind::kAuto, VerifyMode::kAuto);
  run.kv = KvMode::kHost;
  card.rates = find_gpu("rtx4090").rates();
  EXPECT_EQ(card.settled(run).verify.mode, VerifyMode::kLossless);
  card.rates->queries_tflop_per_s = 1e-6;
  const RunSetup setup = card.settled(run);
  EXPECT_EQ(setup.verify.mode, VerifyMode::kFull);
  EXPECT_STREQ(setup.verify_note, "partial steps are predicted to be slower");
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
