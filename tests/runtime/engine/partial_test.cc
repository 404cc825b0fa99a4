// Partial verification: a lossless run's text is the full KV's whatever partial steps saw, and how runs end that have
// pending tokens (docs/design.md, section 8).
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/engine_search.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/stops_at.h"
#include "tests/support/those.h"

namespace headrace {
namespace {

using testing::kSanitized;
using testing::Room;

struct Run {
  SpecType spec = SpecType::kNone;
  testing::RowsType dtype{};  // or kInt8: of the cache, with weights in bf16
  DeviceChoice device = DeviceChoice::kCpu;
  bool hybrid = false;   // most layers have a recurrent state in place of rows
  bool experts = false;  // in place of the feed-forward part
  bool windows = false;  // of most layers
  const char* model() const {
    return hybrid && experts ? "qwen35moe" : hybrid ? "qwen35" : experts ? "qwen3moe" : windows ? "gemma3" : "llama31";
  }
  int32_t vocab() const { return hybrid || experts || windows ? 320 : 512; }
};

class PartialText : public ::testing::TestWithParam<Run> {
 protected:
  static EngineOptions options() {
    EngineOptions options;
    options.model = testing::tiny_model(GetParam().model());
    options.device = {.choice = GetParam().device, .threads = 2};
    options.want_tokenizer = false;
    options.dtype = testing::weights_type(GetParam().dtype);
    options.prefill = GetParam().dtype.prefill();
    if (low_bit(GetParam().dtype)) options.cache_type_k = options.cache_type_v = GetParam().dtype;
    options.ring.slots = 2;
    options.draft.type = GetParam().spec;
    return options;
  }
  static VerifyOptions lossless(int64_t budget, int64_t interval) {
    return {.mode = VerifyMode::kLossless, .budget = budget, .interval = interval};
  }
  static std::vector<int32_t> prompt(int64_t tokens) { return testing::repeated_ids(tokens, GetParam().vocab()); }
};

// Whatever the budget, the interval, the sampling and where the KV cache lies; prompts beyond the budget, and prompts
// that outgrow it while the answer is written.
TEST_P(PartialText, IsThatOfPlainDecoding) {
  Engine engine(options());
  VerifyOutcome verify_outcome;
  int64_t partial_steps = 0, recovered = 0;
  std::vector<SamplingSettings> samplings = {
      {.temperature = 0.0f}, {.temperature = 0.7f, .seed = 3}, {.temperature = 1.2f, .top_p = 0.9f, .seed = 5}};
  std::vector<int64_t> prompts = {380}, intervals = {0, 8, 20, 128, kAutoInterval};
  if (kSanitized) {
    samplings = {samplings[1]}, intervals = {8, 20, 128, kAutoInterval};
  } else if (GetParam().dtype == DType::kF32) {  // a smaller table says as much of bf16
    prompts = {330, 380, 700};
  }
  for (const int64_t tokens : prompts) {
    for (const SamplingSettings& sampling : samplings) {
      GenerateOptions run{.max_tokens = 120, .sampling = sampling, .ignore_eos = true, .speculate = false};
      run.step_costs = {.partial_ms = 1, .refresh_ms = 4};  // so that a busy machine changes no count below
      run.verify = VerifyOptions{.mode = VerifyMode::kFull};
      const GenerateResult plain = engine.generate(prompt(tokens), run, nullptr);
      run.speculate = true;
      for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
        for (const int64_t interval : intervals) {
          run.kv = kv;
          run.verify = lossless(64, interval);
          const GenerateResult said = engine.generate(prompt(tokens), run, nullptr);
          ASSERT_EQ(said.token_ids, plain.token_ids)
              << tokens << " T " << sampling.temperature << " every " << interval;
          EXPECT_EQ(said.timings.decode_tokens, plain.timings.decode_tokens);
          EXPECT_GT(said.speculation.of(StepMode::kPartial).steps + said.speculation.of(StepMode::kRefresh).steps, 0);
          partial_steps += said.speculation.of(StepMode::kPartial).steps;
          verify_outcome.add(said.speculation.verify_outcome);
        }
        run.verify = VerifyOptions{.mode = VerifyMode::kAuto};
        const GenerateResult chosen = engine.generate(prompt(tokens), run, nullptr);
        ASSERT_EQ(chosen.token_ids, plain.token_ids) << tokens << " T " << sampling.temperature << ", auto";
        // A GPU's measured rates may say that a step of so small a model is launches, whatever it reads.
        const std::string_view note = chosen.verify_note;
        if (kv == KvMode::kHost && note != "partial steps are predicted to be slower") {
          EXPECT_EQ(chosen.speculation.verify, VerifyMode::kLossless);
          EXPECT_EQ(note, "");
        } else {
          EXPECT_EQ(chosen.speculation.verify, VerifyMode::kFull);
          if (kv == KvMode::kDevice) {
            EXPECT_EQ(note, "nothing streams");
          }
        }
        // Pending tokens as a tree, with second choices that are followed, and a draft's wrong guesses kept.
        for (const int64_t interval : {int64_t{20}, kAutoInterval}) {
          if (kv != KvMode::kHost) continue;
          run.verify = lossless(64, interval);
          run.pending = {.width = 12, .grown = 90, .nodes = 120, .least = 0.001};
          const GenerateResult said = engine.generate(prompt(tokens), run, nullptr);
          ASSERT_EQ(said.token_ids, plain.token_ids)
              << tokens << " T " << sampling.temperature << " every " << interval << ", a tree";
          recovered += said.speculation.verify_outcome.recovered;
          run.pending.reset();
        }
      }
    }
  }
  EXPECT_GT(recovered, kSanitized ? 0 : 5);
  // The table would prove little if no partial step were wrong, or none right.
  EXPECT_GT(partial_steps, kSanitized ? 100 : 300);
  EXPECT_GT(verify_outcome.rejected, kSanitized ? 10 : 30);
  EXPECT_GT(verify_outcome.judged, 2 * verify_outcome.rejected);
}

// Whichever blocks partial steps read: with every score, and every way to combine the queries of a step.
class PartialTextInF32 : public PartialText {};  // the kernels' tests have the other types
TEST_P(PartialTextInF32, IsThatOfPlainDecodingWithEveryScore) {
  Engine engine(options());
  GenerateOptions run{.max_tokens = 40, .kv = KvMode::kHost, .sampling = {.temperature = 0.7f, .seed = 3}};
  run.ignore_eos = true;
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  run.speculate = false;
  const std::vector<int32_t> plain = engine.generate(prompt(1000), run, nullptr).token_ids;
  run.speculate = true;
  std::set<std::vector<int32_t>> approximate;  // a text for each choice of blocks
  for (const BlockScore score : {BlockScore::kQuest, BlockScore::kSpecPv, BlockScore::kRecent}) {
    for (const BlockReduce reduce : {BlockReduce::kMean, BlockReduce::kMax, BlockReduce::kLast}) {
      const bool first = reduce == BlockReduce::kMean;
      if ((score == BlockScore::kRecent || kSanitized) && !first) continue;  // kRecent has no queries
      const std::string what = str("score ", static_cast<int>(score), ", reduced by ", static_cast<int>(reduce));
      run.verify = lossless(64, 8);
      run.verify->score = score;
      run.verify->reduce = reduce;
      const GenerateResult chain = engine.generate(prompt(1000), run, nullptr);
      EXPECT_EQ(chain.token_ids, plain) << what;
      EXPECT_GT(chain.speculation.verify_outcome.rejected, 0) << what;
      if (first) {
        run.pending = {.width = 12, .grown = 90, .nodes = 120, .least = 0.001};
        EXPECT_EQ(engine.generate(prompt(1000), run, nullptr).token_ids, plain) << what << ", a tree";
        run.pending.reset();
      }
      if (kSanitized) continue;
      run.verify->mode = VerifyMode::kApproximate;
      approximate.insert(engine.generate(prompt(1000), run, nullptr).token_ids);
    }
  }
  EXPECT_TRUE(kSanitized || approximate.size() > 3) << "scores that choose the same blocks prove little";
}

// Whatever partial steps see of the last rows, and if the tree alone chooses: chains that a refresh overturns and that
// reach far beyond the window, and trees. An approximate run depends on the window, and begins with a refresh.
TEST_P(PartialText, IsThatOfPlainDecodingWithEveryWindow) {
  if (GetParam().dtype != DType::kF32) GTEST_SKIP() << "one type alone: the kernels' tests have the others";
  Engine engine(options());
  GenerateOptions run{.max_tokens = 160, .kv = KvMode::kHost, .sampling = {.temperature = 0.7f, .seed = 3}};
  run.ignore_eos = true;
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  run.speculate = false;
  const std::vector<int32_t> plain = engine.generate(prompt(700), run, nullptr).token_ids;
  run.speculate = true;
  std::set<std::vector<int32_t>> approximate;
  for (const int64_t window : {64, 128, 192}) {
    run.verify = lossless(64, window == 128 ? 20 : kMaxPending);
    run.verify->window = window;
    run.verify->queries = BlockQueries::kTree;
    const GenerateResult chain = engine.generate(prompt(700), run, nullptr);
    EXPECT_EQ(chain.token_ids, plain) << window;
    EXPECT_GT(chain.speculation.verify_outcome.rejected, 0) << window;
    run.pending = {.width = 12, .grown = 90, .nodes = 120, .least = 0.001};
    EXPECT_EQ(engine.generate(prompt(700), run, nullptr).token_ids, plain) << window << ", a tree";
    run.pending.reset();
    run.verify->mode = VerifyMode::kApproximate;
    run.verify->interval = 20;
    const GenerateResult text = engine.generate(prompt(700), run, nullptr);
    EXPECT_GT(text.speculation.of(StepMode::kPartial).steps, 4 * text.speculation.of(StepMode::kFull).steps);
    EXPECT_EQ(engine.generate(prompt(700), run, nullptr).token_ids, text.token_ids) << window;
    approximate.insert(text.token_ids);
  }
  EXPECT_GT(approximate.size(), 1u) << "a window that changes nothing";
}

// Beyond row 16,384, where segments are larger, with a cache that is resident in part, and with refreshes that judge
// several hundred nodes.
class PartialTextFarOut : public PartialText {};  // without drafts: the prompt is long
TEST_P(PartialTextFarOut, IsThatOfPlainDecoding) {
  EngineOptions far = options();
  far.rope = {.scaling = RopeScaling::kLinear, .factor = 12};
  constexpr int64_t kPrompt = 16384 + 700;
  GenerateOptions run{.max_tokens = 32, .sampling = {.temperature = 0.8f, .seed = 7}, .ignore_eos = true};
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  const std::vector<int32_t> plain = Engine(far).generate(prompt(kPrompt), run, nullptr).token_ids;

  run.verify = lossless(512, 10);
  run.pending = {.width = 64, .grown = 512, .nodes = 512, .least = 1e-5};
  far.weights_place = WeightsPlace::kDevice;
  std::unique_ptr<Engine> engine;
  const auto partly = [](const MemoryPlan& plan) { return plan.host_bytes > 0 && plan.resident_segments > 0; };
  for (uint64_t low = kMiB, high = 4096 * kMiB; high - low > kMiB / 4;) {
    far.device.vram_bytes = low / 2 + high / 2;
    try {
      engine = std::make_unique<Engine>(far);
      const MemoryPlan plan = engine->plan(kPrompt, run).memory;
      if (partly(plan)) break;
      (plan.host_bytes > 0 ? low : high) = far.device.vram_bytes;
    } catch (const Error&) {  // too little for anything
      low = far.device.vram_bytes;
    }
  }
  ASSERT_NE(engine, nullptr);
  const GenerateResult said = engine->generate(prompt(kPrompt), run, nullptr);
  ASSERT_TRUE(partly(said.plan)) << said.plan.to_string();
  EXPECT_EQ(said.token_ids, plain);
  const Speculation& s = said.speculation;
  ASSERT_GT(s.of(StepMode::kRefresh).steps, 0);
  const Speculation::Kind& refreshes = s.of(StepMode::kRefresh);
  EXPECT_GT(refreshes.nodes / refreshes.steps, 250) << "a refresh judged fewer nodes than meant here";
}

// With a budget that holds the blocks once prefill has freed its memory, and not beside it. The same blocks are
// selected as with a larger budget, so approximate text is the same, too.
class PartialTextInBf16 : public PartialText {};  // one type alone: the prompt is long
TEST_P(PartialTextInBf16, IsTheSameWithBlocksMadeAfterPrefill) {
  constexpr int64_t kPrompt = 8000;
  EngineOptions small = options();
  small.rope = {.scaling = RopeScaling::kLinear, .factor = 12};
  small.prefill_group = 8192;  // prefill's buffers are to be larger than a step's, as a GPU's are
  Engine large(small);
  GenerateOptions run{.max_tokens = 80, .sampling = {.temperature = 0.8f, .seed = 7}, .ignore_eos = true};
  const auto room_of = [](const MemoryPlan& plan) { return plan.late_partial ? Room::kWanted : Room::kTooMuch; };
  const auto late = [&]() -> std::vector<int32_t> {
    const std::unique_ptr<Engine> engine = testing::engine_with_room(&small, kPrompt, run, room_of);
    if (engine == nullptr) return {};
    const GenerateResult said = engine->generate(prompt(kPrompt), run, nullptr);
    EXPECT_TRUE(said.plan.late_partial);
    EXPECT_LE(said.memory.vram_peak_bytes, small.device.vram_bytes);
    EXPECT_GT(said.speculation.of(StepMode::kPartial).steps, 20);
    return said.token_ids;
  };
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  const std::vector<int32_t> plain = large.generate(prompt(kPrompt), run, nullptr).token_ids;
  run.verify = lossless(128, 10);
  run.verify->partial = PartialKind::kBlocks;
  for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
    run.kv = kv;
    EXPECT_EQ(late(), plain);
  }
  run.verify->mode = VerifyMode::kApproximate;
  const GenerateResult early = large.generate(prompt(kPrompt), run, nullptr);
  EXPECT_FALSE(early.plan.late_partial);
  EXPECT_NE(early.token_ids, plain) << "partial steps that are all right say little";
  EXPECT_EQ(late(), early.token_ids);
}

// The run ends where plain decoding ends: with -n anywhere among pending tokens, and with an end token there.
class PartialTextOfExactRows : public PartialText {};  // where a run ends is not the cache's
TEST_P(PartialTextOfExactRows, EndsWherePlainDecodingEnds) {
  EngineOptions o = options();
  Engine engine(o);
  const SamplingSettings sampling{.temperature = 1.0f, .seed = 2};
  GenerateOptions run{.max_tokens = 200, .sampling = sampling, .speculate = false};
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  int64_t stops = 0;
  for (uint64_t seed = 1; seed <= (kSanitized ? 2 : 4); ++seed) {
    run.sampling.seed = seed;
    for (const int64_t most : {1, 9, 120}) {
      run.max_tokens = most;
      run.speculate = false;
      run.verify = VerifyOptions{.mode = VerifyMode::kFull};
      const GenerateResult plain = engine.generate(prompt(400), run, nullptr);
      run.speculate = true;
      struct Way {
        int64_t interval;
        bool tree;
      };
      for (const Way way : {Way{40, false}, Way{kAutoInterval, false}, Way{seed % 2 == 0 ? kAutoInterval : 12, true}}) {
        run.verify = lossless(64, way.interval);
        run.kv = way.tree ? KvMode::kHost : KvMode::kAuto;
        run.pending.reset();
        if (way.tree) run.pending = {.width = 12, .grown = 90, .nodes = 120, .least = 0.001};
        const GenerateResult said = engine.generate(prompt(400), run, nullptr);
        EXPECT_EQ(said.token_ids, plain.token_ids)
            << "seed " << seed << ", " << most << ", every " << way.interval << (way.tree ? ", a tree" : "");
        EXPECT_EQ(said.finish_reason, plain.finish_reason);
      }
      stops += plain.finish_reason == FinishReason::kStop ? 1 : 0;
    }
  }
  EXPECT_GT(stops, 0) << "no run met an end token: choose other seeds";
}

// A tree's refresh comes when its first choices have come as far as a fixed interval says, and judges nothing deeper.
TEST_P(PartialText, IsJudgedAtTheInterval) {
  Engine engine(options());
  GenerateOptions run{.max_tokens = 60, .sampling = {.temperature = 0.6f, .seed = 3}, .ignore_eos = true};
  run.kv = KvMode::kHost;
  run.pending = {.width = 12, .grown = 300, .nodes = 300, .least = 1e-4};
  for (const int64_t interval : {1, 4, 9}) {
    run.verify = lossless(64, interval);
    const Speculation s = engine.generate(prompt(400), run, nullptr).speculation;
    const Speculation::Kind &partial = s.of(StepMode::kPartial), &refresh = s.of(StepMode::kRefresh);
    ASSERT_GT(refresh.steps, 0);
    EXPECT_LE(refresh.committed, refresh.steps * (interval + 1));
    EXPECT_EQ(s.committed, refresh.committed) << "a partial step of a lossless run makes nothing certain";
    if (GetParam().spec == SpecType::kNone) {  // a first choice a step, unless others are likelier
      EXPECT_GE(partial.steps, (refresh.steps - 1) * interval);
      EXPECT_LE(partial.steps, refresh.steps * (interval + 6));
    } else {
      EXPECT_LE(partial.steps, refresh.steps * (interval + 6));
    }
  }
}

// A run that is interrupted has said committed text only: the beginning of plain decoding's.
TEST_P(PartialText, IsConfirmedWhenInterrupted) {
  Engine engine(options());
  const SamplingSettings sampling{.temperature = 0.9f, .seed = 4};
  GenerateOptions run{.max_tokens = 120, .sampling = sampling, .ignore_eos = true, .speculate = false};
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  const GenerateResult plain = engine.generate(prompt(400), run, nullptr);
  run.speculate = true;
  run.verify = lossless(64, 30);

  for (const int updates : {1, 2, 5, 20, 33}) {
    std::atomic<bool> flag{false};
    testing::StopsAt progress(updates, &flag);
    run.interrupt = &flag;
    const GenerateResult said = engine.generate(prompt(400), run, &progress);
    EXPECT_EQ(said.finish_reason, FinishReason::kInterrupted);
    ASSERT_LT(said.token_ids.size(), plain.token_ids.size());
    EXPECT_TRUE(std::equal(said.token_ids.begin(), said.token_ids.end(), plain.token_ids.begin())) << updates;
  }
}

// A budget that the context never outgrows: no partial KV is taken, and no step is partial.
TEST_P(PartialText, IsPlainWhereTheBudgetHoldsAll) {
  Engine engine(options());
  GenerateOptions run{.max_tokens = 40, .ignore_eos = true};
  run.verify = lossless(512, kAutoInterval);
  const GenerateResult said = engine.generate(prompt(600), run, nullptr);
  EXPECT_EQ(said.plan.partial_bytes, 0u);
  EXPECT_EQ(said.plan.index_bytes, 0u);
  EXPECT_EQ(said.speculation.of(StepMode::kPartial).steps, 0);
  EXPECT_EQ(said.speculation.of(StepMode::kRefresh).steps, 0);
  EXPECT_EQ(said.speculation.of(StepMode::kFull).steps, said.timings.decode_steps);
}

// A refresh that streams judges more nodes than one that does not, and only the former's plan has rows for them.
class PartialTextWithoutADraft : public PartialText {};  // with one a CPU's pending tokens are a chain
TEST_P(PartialTextWithoutADraft, PlansTheRowsThatItUses) {
  Engine engine(options());
  GenerateOptions run{.max_tokens = 60, .sampling = {.temperature = 0.8f, .seed = 2}, .ignore_eos = true};
  run.verify = lossless(64, kAutoInterval);
  run.kv = KvMode::kDevice;
  const RunPlan resident = engine.plan(700, run);
  const GenerateResult said = engine.generate(prompt(700), run, nullptr);
  EXPECT_EQ(said.plan.vram_bytes, resident.memory.vram_bytes);
  run.kv = KvMode::kHost;
  const RunPlan streaming = engine.plan(700, run);
  EXPECT_EQ(resident.memory.ring_slots, 0);
  EXPECT_GT(streaming.memory.ring_slots, 0);
  EXPECT_GT(resident.grow_rows, 0);
  EXPECT_LT(resident.pass_rows, streaming.pass_rows);
  EXPECT_EQ(engine.generate(prompt(700), run, nullptr).token_ids, said.token_ids);
}

// Partial acceptance is final: the text may differ, every token came out of a step, and refreshes come at the interval.
TEST_P(PartialText, IsFinalAtOnceWhereApproximate) {
  Engine engine(options());
  GenerateOptions run{.max_tokens = 150, .sampling = {.temperature = 0.9f, .seed = 6}, .ignore_eos = true};
  run.verify = VerifyOptions{.mode = VerifyMode::kApproximate, .budget = 64, .interval = 20};
  const GenerateResult said = engine.generate(prompt(700), run, nullptr);
  EXPECT_EQ(said.token_ids.size(), 150u);
  const Speculation& s = said.speculation;
  EXPECT_GT(s.of(StepMode::kRefresh).steps, 3);
  EXPECT_LE(s.of(StepMode::kRefresh).steps, 150 / 20 + 1);
  EXPECT_EQ(s.verify_outcome.discarded, 0);
  EXPECT_GT(s.verify_outcome.judged, 60);
  EXPECT_GE(s.steps + s.accepted, said.timings.decode_tokens);  // the last step's may go beyond the run's end
}

std::vector<Run> runs() {
  std::vector<Run> all;
  for (const DeviceChoice device : testing::session_devices()) {
    for (const SpecType spec : {SpecType::kNone, SpecType::kNgram}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8}) {
        // Slow ones see each draft and each type once: the type is the kernels', who drafts is not.
        if (kSanitized && (dtype == DType::kF32) == (spec == SpecType::kNone)) continue;
        if (dtype == DType::kInt8 && spec == SpecType::kNgram) continue;
        all.push_back({spec, dtype, device});
      }
    }
    all.push_back({SpecType::kNgram, testing::kReadInInt8, device});
  }
  return all;
}

// Of hybrids, which differ from the others in how tokens are pending, a part: that depends on no type.
std::vector<Run> runs_and_hybrids() {
  std::vector<Run> all = runs();
  for (const DeviceChoice device : testing::session_devices()) {
    all.push_back({SpecType::kNgram, DType::kBF16, device, true});
    all.push_back({SpecType::kNgram, DType::kBF16, device, false, true});
    all.push_back({SpecType::kNgram, DType::kBF16, device, true, true});
    all.push_back({SpecType::kNgram, DType::kBF16, device, false, false, true});
    if (kSanitized) continue;
    all.push_back({SpecType::kNgram, DType::kInt8, device, false, false, true});
    all.push_back({SpecType::kNone, DType::kF32, device, true});
    all.push_back({SpecType::kNgram, DType::kInt8, device, true});
  }
  return all;
}

std::string name_of_run(const ::testing::TestParamInfo<Run>& instance) {
  const Run& run = instance.param;
  return testing::device_name(run.device) + (run.spec == SpecType::kNone ? "_none_" : "_ngram_") + run.dtype.name() +
         (run.hybrid ? "_hybrid" : "") + (run.experts ? "_experts" : "") + (run.windows ? "_windows" : "");
}

// Windows are in the first table alone: windows_test has more of them.
template <typename Keep>
auto runs_that(const Keep& keep) {
  return ::testing::ValuesIn(
      testing::those(runs_and_hybrids(), [&](const Run& run) { return !run.windows && keep(run); }));
}

INSTANTIATE_TEST_SUITE_P(Runs, PartialText, ::testing::ValuesIn(runs_and_hybrids()), name_of_run);
INSTANTIATE_TEST_SUITE_P(Runs, PartialTextInF32,
                         runs_that([](const Run& run) { return run.dtype == DType::kF32 && !run.hybrid; }),
                         name_of_run);
// Their prompts are too long for the sanitizers. Of the tiny model with experts no budget of the search leaves blocks
// for after prefill, and none of the seeds' texts meets an end token.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PartialTextFarOut);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PartialTextInBf16);
INSTANTIATE_TEST_SUITE_P(Runs, PartialTextFarOut, runs_that([](const Run& run) {
                           return !kSanitized && run.dtype != DType::kF32 && run.spec == SpecType::kNone;
                         }),
                         name_of_run);
INSTANTIATE_TEST_SUITE_P(Runs, PartialTextInBf16, runs_that([](const Run& run) {
                           return !kSanitized && run.dtype == DType::kBF16 && !run.experts;
                         }),
                         name_of_run);
INSTANTIATE_TEST_SUITE_P(Runs, PartialTextOfExactRows,
                         runs_that([](const Run& run) { return !low_bit(run.dtype) && !run.experts; }), name_of_run);
INSTANTIATE_TEST_SUITE_P(Runs, PartialTextWithoutADraft,
                         runs_that([](const Run& run) { return run.spec == SpecType::kNone && !run.hybrid; }),
                         name_of_run);

}  // namespace
}  // namespace headrace
