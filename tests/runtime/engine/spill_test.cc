// The disk tier in the engine: drafts and partial verification over a cache that is partly on disk say what they say
// without, and what goes wrong with the disk is an error that names it, never another text.
#include "tests/support/spill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>

#include "offload/spill/spill_file.h"
#include "runtime/engine/engine.h"
#include "tests/support/file_faults.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"

namespace headrace {
namespace {

using testing::failing;
using testing::host_bytes_for;
using testing::ScriptedFaults;

class SpillEngine : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  static constexpr int64_t kPrompt = 1530;  // row 1,536 ends a segment that lives on disk

  EngineOptions options(SpecType spec = SpecType::kNone) const {
    EngineOptions o;
    o.model = testing::tiny_model("llama31");
    o.device = {.choice = GetParam(), .threads = 2};
    o.want_tokenizer = false;
    o.dtype = DType::kBF16;  // small weights, whose loading takes host memory, too, beside a cache that is larger
    o.cache_type_k = o.cache_type_v = DType::kF32;
    o.kv = KvMode::kHost;
    o.draft.type = spec;
    return o;
  }
  // Of a run's host memory that leaves `share` of its cache for the disk.
  static uint64_t tight_host_bytes(Engine& engine, const GenerateOptions& run, double share, int64_t tokens = kPrompt) {
    const RunPlan plan = engine.plan(tokens, run);
    const Backend backend = engine.device().backend();
    // Each tensor's pages are whole: more than their bytes, and less than a segment more.
    const uint64_t draft = plan.draft_weights_bytes > 0 ? plan.draft_weights_bytes + 64 * kKiB : 0;
    const uint64_t weights = backend == Backend::kCpu ? plan.weights_bytes + draft : 0;
    return weights + host_bytes_for(plan.memory, backend, share, 2 * 512 * 256);
  }
  // The same, with three of four segments of such a run's cache on disk.
  EngineOptions mostly_on_disk(const GenerateOptions& run, SpecType spec = SpecType::kNone) const {
    EngineOptions o = options(spec);
    Engine engine(o);
    o.spill = {.folder = folder_.path(), .slots = 2};
    o.device.host_mem_bytes = tight_host_bytes(engine, run, 0.6);
    return o;
  }
  static std::vector<int32_t> prompt(int64_t tokens = kPrompt) {
    std::vector<int32_t> ids = testing::made_up_ids(tokens / 2, 512);
    ids.insert(ids.end(), ids.begin(), ids.end());  // twice the same, so that a look-up has something to find
    ids.resize(static_cast<size_t>(tokens), 7);
    return ids;
  }
  static GenerateOptions answer(int64_t tokens) {
    GenerateOptions run{.max_tokens = tokens, .sampling = {.temperature = 0.8f, .seed = 3}, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    return run;
  }
  std::string error_of(Engine& engine, const GenerateOptions& run) {
    try {
      engine.generate(prompt(), run, nullptr);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kStorage) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }
  bool nothing_left() const { return std::filesystem::is_empty(folder_.path()); }

  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Devices, SpillEngine, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

// With and without a draft, all tokens judged by full steps or by the refreshes of partial verification.
TEST_P(SpillEngine, DraftsAndPartialVerificationSayTheSame) {
  GenerateOptions run = answer(60);
  run.speculate = false;
  Engine whole(options());
  const GenerateResult plain = whole.generate(prompt(), run, nullptr);
  EXPECT_EQ(plain.spill.file.file_bytes, 0u);
  EXPECT_EQ(plain.memory.disk_peak_bytes, 0u);
  run.speculate = true;
  for (const SpecType spec : {SpecType::kNone, SpecType::kNgram}) {
    for (const VerifyMode mode : {VerifyMode::kFull, VerifyMode::kLossless}) {
      run.verify = VerifyOptions{.mode = mode, .budget = 64, .interval = 16};
      const EngineOptions tight = mostly_on_disk(run, spec);
      Engine engine(tight);
      const GenerateResult said = engine.generate(prompt(), run, nullptr);
      EXPECT_EQ(said.token_ids, plain.token_ids);
      EXPECT_GT(said.plan.disk_bytes, said.plan.host_bytes / 2);
      EXPECT_GT(said.plan.host_bytes, 0u);
      EXPECT_EQ(said.memory.disk_peak_bytes, said.plan.disk_bytes);
      EXPECT_EQ(said.memory.kv_bytes, plain.memory.kv_bytes);
      EXPECT_EQ(said.spill.file.file_bytes, said.plan.disk_bytes);
      EXPECT_GT(said.spill.prefill_written_bytes, 0u);
      EXPECT_GT(said.spill.file.read_bytes, said.spill.prefill_written_bytes);
      EXPECT_EQ(said.spill.folder, folder_.path());
      EXPECT_LE(said.memory.host_peak_bytes, tight.device.host_mem_bytes);
      if (mode == VerifyMode::kLossless) {
        EXPECT_GT(said.speculation.of(StepMode::kRefresh).steps, 0);
        EXPECT_GT(said.speculation.of(StepMode::kPartial).steps, 0);
      }
      EXPECT_TRUE(nothing_left());
    }
  }
}

// Trees of a draft, judged by passes that stream from the disk.
class SpillDrafts : public SpillEngine {
 protected:
  // With the answer eleven segments, so that a tenth on disk is one that is read, or three.
  static constexpr int64_t kLong = testing::kSanitized ? 1016 : 5110, kSegments = testing::kSanitized ? 3 : 11;

  // Everything, half and a tenth of the cache on disk: all of them where a run is quick.
  static std::vector<double> every_share() {
    return testing::kSanitized ? std::vector<double>{0.5} : std::vector<double>{1.0, 0.5, 0.12};
  }

  void expect_same_text(SpecType spec, VerifyMode mode, const std::vector<double>& shares) const {
    const std::vector<int32_t> ids = prompt(kLong);
    GenerateOptions run = answer(24);
    EngineOptions whole = options(spec);
    whole.draft.model = spec == SpecType::kEagle3 ? head_.path() : testing::tiny_model("llama31");
    whole.draft.tree = parse_tree("beams:4,8,8");
    whole.rope = {.scaling = RopeScaling::kLinear, .factor = 4};  // 8,192 positions instead of 2,048
    Engine fresh(whole);
    run.speculate = false;
    const std::vector<int32_t> plain = fresh.generate(ids, run, nullptr).token_ids;
    run.speculate = true;
    run.verify = VerifyOptions{.mode = mode, .budget = 64, .interval = 8};
    const GenerateResult memory = fresh.generate(ids, run, nullptr);
    EXPECT_EQ(memory.token_ids, plain);
    for (const double share : shares) {
      EngineOptions tight = whole;
      // Weights on their way to a GPU take host memory, too: with no rows there, the ring's slots have it afterwards.
      const int slots = GetParam() == DeviceChoice::kCuda && share == 1.0 ? 12 : 2;
      tight.spill = {.folder = folder_.path(), .slots = slots};
      tight.device.host_mem_bytes =
          tight_host_bytes(fresh, run, share, kLong) + static_cast<uint64_t>(slots - 2) * 512 * 256;
      const GenerateResult said = Engine(tight).generate(ids, run, nullptr);
      EXPECT_EQ(said.token_ids, plain) << share;
      const auto cache = static_cast<double>(said.plan.disk_bytes + said.plan.host_bytes);
      EXPECT_NEAR(static_cast<double>(said.plan.disk_bytes) / cache, share, 1.0 / kSegments) << share;
      EXPECT_GT(said.spill.file.read_bytes, 0u) << share;
      EXPECT_GT(said.speculation.accepted, 0) << share;
      if (mode == VerifyMode::kLossless) {
        EXPECT_GT(said.speculation.of(StepMode::kRefresh).steps, 0) << share;
        EXPECT_GT(said.speculation.of(StepMode::kPartial).steps, 0) << share;
      } else {  // what a draft guesses does not depend on where the cache lies
        EXPECT_EQ(said.speculation.accepted_by_depth, memory.speculation.accepted_by_depth) << share;
      }
    }
  }

  SpillDrafts() { testing_support::tiny_eagle3_head().write(head_.path()); }
  const TemporaryFolder head_;
};

INSTANTIATE_TEST_SUITE_P(Devices, SpillDrafts, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST_P(SpillDrafts, Eagle3SaysTheSame) { expect_same_text(SpecType::kEagle3, VerifyMode::kFull, every_share()); }
TEST_P(SpillDrafts, Eagle3SaysTheSameInPartialSteps) {
  expect_same_text(SpecType::kEagle3, VerifyMode::kLossless, every_share());
}
TEST_P(SpillDrafts, ASmallModelSaysTheSame) { expect_same_text(SpecType::kSimple, VerifyMode::kFull, {0.5}); }
TEST_P(SpillDrafts, ASmallModelSaysTheSameInPartialSteps) {
  expect_same_text(SpecType::kSimple, VerifyMode::kLossless, {0.5});
}

// What came of a run is in its report.
TEST_P(SpillEngine, ReportsHowItRead) {
  const GenerateOptions run = answer(20);
  const GenerateResult said = Engine(mostly_on_disk(run)).generate(prompt(), run, nullptr);
  EXPECT_EQ(said.spill.file.reads_at_once,
            std::min(kReadDepth, static_cast<int>(said.plan.disk_slots)));  // of one request each
  EXPECT_GT(said.spill.file.read_busy_ms, 0);
}

// What fails names the folder; the engine goes on, and then says what it would have said.
TEST_P(SpillEngine, WhatGoesWrongWithTheDiskIsAnErrorThatNamesIt) {
  const GenerateOptions run = answer(30);
  const std::vector<int32_t> plain = Engine(options()).generate(prompt(), run, nullptr).token_ids;
  Engine engine(mostly_on_disk(run));
  struct Fault {
    FileOp op;
    int64_t nth;
    int error;
    const char* says;
  };
  for (const Fault& fault :
       {Fault{FileOp::kOpen, 0, EACCES, "(EACCES)"}, Fault{FileOp::kAllocate, 0, ENOSPC, "has no room for"},
        Fault{FileOp::kWrite, 0, ENOSPC, "The disk is full"},
        Fault{FileOp::kWrite, 5, EIO, "at offset"},  // a segment that decoding fills
        Fault{FileOp::kRead, 0, EIO, "at offset"},   // the first step
        Fault{FileOp::kRead, 100, EIO, "at offset"}}) {
    const ScriptedFaults faults(failing(fault.op, fault.nth, fault.error));
    const std::string text = error_of(engine, run);
    EXPECT_NE(text.find(folder_.path()), std::string::npos) << text;
    EXPECT_NE(text.find(fault.says), std::string::npos) << text;
    EXPECT_TRUE(nothing_left());
  }
  {
    int reads = 0;
    const ScriptedFaults faults({}, [&](uint64_t, std::span<std::byte> data) {
      if (++reads == 50) data[data.size() / 2] ^= std::byte{4};
    });
    const std::string text = error_of(engine, run);
    EXPECT_NE(text.find(folder_.path()), std::string::npos) << text;
    EXPECT_NE(text.find("are not what was written there"), std::string::npos) << text;
  }
  EXPECT_EQ(engine.generate(prompt(), run, nullptr).token_ids, plain);
  EXPECT_TRUE(nothing_left());
  std::filesystem::remove_all(folder_.path());
  EXPECT_NE(error_of(engine, run).find(folder_.path()), std::string::npos);
}

// Ctrl-C while rows leave and while they come back.
TEST_P(SpillEngine, CanBeInterrupted) {
  std::atomic<bool> interrupt{true};
  GenerateOptions run = answer(30);
  Engine engine(mostly_on_disk(run));
  run.interrupt = &interrupt;
  EXPECT_EQ(engine.generate(prompt(), run, nullptr).finish_reason, FinishReason::kInterrupted);
  interrupt = false;
  int reads = 0;
  const ScriptedFaults faults({}, [&](uint64_t, std::span<std::byte>) { interrupt = ++reads > 60; });
  const GenerateResult said = engine.generate(prompt(), run, nullptr);
  EXPECT_EQ(said.finish_reason, FinishReason::kInterrupted);
  EXPECT_LT(said.token_ids.size(), 30u);
  EXPECT_TRUE(nothing_left());
}

// SIZE is a limit like any other.
TEST_P(SpillEngine, ThePlansRefusalNamesTheFlag) {
  const GenerateOptions run = answer(30);
  EngineOptions tight = mostly_on_disk(run);
  tight.spill.limit_bytes = 100 * kKiB;
  Engine engine(tight);
  try {
    engine.generate(prompt(), run, nullptr);
    FAIL() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_EQ(error.info().where, "--spill") << error.what();
    EXPECT_NE(error.info().what.find("100.00 KiB are free"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headrace
