// Partial verification of models with recurrent layers, in what is theirs alone: how many tokens may be pending depends
// on the memory, and whatever proposes tokens, wherever rows are, text is that of plain decoding. partial_test.cc and
// row_copy_test.cc have the tables.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/minimum_budgets.h"
#include "runtime/engine/engine.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/hf_directory.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/spill.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

constexpr int32_t kVocab = 320;
constexpr int64_t kAnswer = 120;

class HybridPartial : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  static EngineOptions options(DType dtype = DType::kF32) {
    EngineOptions o;
    o.model = testing::tiny_model("qwen35");
    o.device = {.choice = GetParam(), .threads = 2};
    o.want_tokenizer = false;
    o.dtype = dtype;
    o.ring.slots = 2;
    return o;
  }
  static GenerateOptions answer(float temperature) {
    return {.max_tokens = kAnswer, .sampling = {.temperature = temperature, .seed = 3}, .ignore_eos = true};
  }
  static VerifyOptions lossless(PartialKind kind, int64_t interval = kAutoInterval) {
    VerifyOptions verify{.mode = VerifyMode::kLossless, .partial = kind, .interval = interval};
    if (kind == PartialKind::kBlocks) verify.budget = 64;
    return verify;
  }
  static std::vector<int32_t> plain(Engine& engine, const std::vector<int32_t>& ids, GenerateOptions run) {
    run.speculate = false;
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    return engine.generate(ids, run, nullptr).token_ids;
  }
  static void expect_both_kinds_of_steps(const GenerateResult& result) {
    EXPECT_GT(result.speculation.of(StepMode::kPartial).steps, 0);
    EXPECT_GT(result.speculation.of(StepMode::kRefresh).steps, 0);
  }
};
// A plain language model with the same vocabulary. Noise that draft and target share makes them agree now and then.
void write_small_model(const std::string& folder) {
  Shape shape = find_shape(testing::tiny_model("llama2") + "/config.json");
  shape.config.vocab = kVocab;
  write_hf_directory(*make_random_checkpoint(shape.name, shape.config, 1), DType::kF32, folder);
}

INSTANTIATE_TEST_SUITE_P(Devices, HybridPartial, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST_P(HybridPartial, IsLosslessByDefaultWithADraft) {
  EngineOptions o = options();
  o.draft.type = SpecType::kNgram;
  Engine engine(o);
  const std::vector<int32_t> ids = testing::repeated_ids(700, kVocab);
  GenerateOptions run = answer(0.8f);
  run.kv = KvMode::kHost;
  const GenerateResult said = engine.generate(ids, run, nullptr);
  EXPECT_EQ(said.speculation.verify, VerifyMode::kLossless);
  expect_both_kinds_of_steps(said);
  EXPECT_EQ(said.token_ids, plain(engine, ids, run));
}

TEST_P(HybridPartial, ASmallModelChangesNoToken) {
  const TemporaryFolder folder;
  write_small_model(folder.path());
  EngineOptions o = options();
  o.draft = {.type = SpecType::kSimple, .model = folder.path(), .tree = parse_tree("beams:4,8,8")};
  Engine engine(o);
  const std::vector<int32_t> ids = testing::made_up_ids(700, kVocab);
  int64_t accepted = 0;
  for (const float temperature : {0.0f, 1.2f}) {
    if (testing::kSanitized && temperature == 0) continue;
    GenerateOptions run = answer(temperature);
    const std::vector<int32_t> expected = plain(engine, ids, run);
    for (const PartialKind kind : {PartialKind::kBlocks, PartialKind::kInt8, PartialKind::kInt4}) {
      for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
        for (const bool tree : {false, true}) {
          if (tree && kv == KvMode::kDevice) continue;
          run.kv = kv;
          run.verify = lossless(kind, tree ? kAutoInterval : 20);
          run.pending.reset();
          if (tree) run.pending = {.width = 12, .grown = 90, .nodes = 120, .least = 0.001};
          const GenerateResult said = engine.generate(ids, run, nullptr);
          EXPECT_EQ(said.token_ids, expected) << partial_kind_name(kind) << " T " << temperature;
          accepted += said.speculation.accepted;
        }
      }
    }
  }
  EXPECT_GT(accepted, 20);
}

// Under every budget that holds the run: the most tokens that may be pending become fewer and trees smaller, and no
// token another one. In approximate mode neither depends on the budget.
class HybridPartialOnCpu : public HybridPartial {  // a GPU's driver takes some MiB more or less from run to run
 protected:
  using Limits = std::pair<int64_t, int64_t>;  // of pending tokens, of a tree's nodes
  static Limits limits_of(const RunPlan& plan) { return {plan.most_pending, plan.pass_rows}; }
  static std::set<Limits> expect_same_text_in_less_memory(EngineOptions o);
};
INSTANTIATE_TEST_SUITE_P(Devices, HybridPartialOnCpu, ::testing::Values(DeviceChoice::kCpu),
                         [](const auto& given) { return testing::device_name(given.param); });
std::set<HybridPartialOnCpu::Limits> HybridPartialOnCpu::expect_same_text_in_less_memory(EngineOptions o) {
  const std::vector<int32_t> ids = testing::made_up_ids(700, kVocab);
  GenerateOptions run = answer(0.8f);
  run.kv = KvMode::kHost;
  Engine large(o);
  const std::vector<int32_t> expected = plain(large, ids, run);
  run.verify = lossless(PartialKind::kBlocks);
  const RunPlan most = large.plan(700, run);
  GenerateOptions approximately = run;
  approximately.verify->mode = VerifyMode::kApproximate;
  const GenerateResult approximate = large.generate(ids, approximately, nullptr);
  const Limits of_approximate = limits_of(large.plan(700, approximately));
  std::set<Limits> seen;
  o.weights_place = WeightsPlace::kDevice;
  const uint64_t taken =
      open_device(o.device)->vram().used_bytes() + most.weights_bytes + most.draft_weights_bytes + 64 * kKiB;
  for (uint64_t vram = most.memory.vram_bytes + kMiB / 4; vram > kMiB / 2; vram -= kMiB / 16) {
    o.device.vram_bytes = taken + vram;
    Engine engine(o);
    Limits limits;
    try {
      limits = limits_of(engine.plan(700, run));
    } catch (const DoesNotFit&) {
      break;
    }
    EXPECT_TRUE(seen.empty() || limits <= *seen.begin()) << "more tokens in less memory";
    if (!seen.insert(limits).second) continue;
    const GenerateResult said = engine.generate(ids, run, nullptr);
    EXPECT_EQ(said.token_ids, expected) << limits.first;
    EXPECT_LE(said.memory.vram_peak_bytes, o.device.vram_bytes);
    expect_both_kinds_of_steps(said);
    EXPECT_EQ(limits_of(engine.plan(700, approximately)), of_approximate);
    EXPECT_EQ(engine.generate(ids, approximately, nullptr).token_ids, approximate.token_ids) << limits.first;
  }
  return seen;
}

TEST_P(HybridPartialOnCpu, FewerTokensPendWhereMemoryIsShort) {
  EXPECT_EQ(expect_same_text_in_less_memory(options()), (std::set<Limits>{{48, 1}, {96, 1}, {192, 1}}));
}

TEST_P(HybridPartialOnCpu, TreesAreSmallerWhereMemoryIsShort) {
  const TemporaryFolder folder;
  write_small_model(folder.path());
  EngineOptions o = options();
  o.draft = {.type = SpecType::kSimple, .model = folder.path()};
  EXPECT_EQ(expect_same_text_in_less_memory(o), (std::set<Limits>{{48, 8}, {96, 12}, {192, 16}}));
}

// With three of four segments on disk, and with a copy whose refreshes stream what it lacks of the rows.
TEST_P(HybridPartial, RowsOnDiskAndRemaindersGiveTheSame) {
  constexpr int64_t kPrompt = 1530;  // row 1,536 ends a segment that lives on disk
  EngineOptions o = options(DType::kBF16);
  o.kv = KvMode::kHost;
  o.remainders = true;
  o.draft.type = SpecType::kNgram;
  Engine whole(o);
  const std::vector<int32_t> ids = testing::repeated_ids(kPrompt, kVocab);
  const GenerateOptions run = answer(0.8f);
  const std::vector<int32_t> expected = plain(whole, ids, run);
  for (const PartialKind kind : {PartialKind::kBlocks, PartialKind::kInt8, PartialKind::kInt4}) {
    GenerateOptions partial = run;
    partial.verify = lossless(kind, 16);
    const GenerateResult said = whole.generate(ids, partial, nullptr);
    EXPECT_EQ(said.token_ids, expected) << partial_kind_name(kind);
    EXPECT_EQ(said.plan.remainder_segments > 0, kind == PartialKind::kInt8);
    expect_both_kinds_of_steps(said);
    const TemporaryFolder folder;
    EngineOptions tight = o;
    tight.cache_type_k = tight.cache_type_v = DType::kF32;  // a cache that is larger beside the weights
    tight.remainders.reset();
    Engine in_memory(tight);
    const std::vector<int32_t> wide = plain(in_memory, ids, run);
    const RunPlan plan = in_memory.plan(kPrompt, partial);
    const Backend backend = in_memory.device().backend();
    tight.spill = {.folder = folder.path(), .slots = 2};
    tight.device.host_mem_bytes = (backend == Backend::kCpu ? plan.weights_bytes : 0) +
                                  testing::host_bytes_for(plan.memory, backend, 0.6, 2 * 512 * 256);
    const GenerateResult spilled = Engine(tight).generate(ids, partial, nullptr);
    EXPECT_EQ(spilled.token_ids, wide) << partial_kind_name(kind);
    EXPECT_GT(spilled.plan.disk_bytes, spilled.plan.host_bytes / 2);
    EXPECT_GT(spilled.spill.file.read_bytes, 0u);
    expect_both_kinds_of_steps(spilled);
  }
}

// In approximate mode the text depends on what partial steps read, not on where the KV cache is.
TEST_P(HybridPartial, ApproximateTextDependsOnTheCopyAlone) {
  Engine engine(options());
  const std::vector<int32_t> ids = testing::repeated_ids(1100, kVocab);
  for (const PartialKind kind : {PartialKind::kBlocks, PartialKind::kInt8, PartialKind::kInt4}) {
    GenerateOptions run = answer(1.2f);
    run.verify = lossless(kind);
    run.verify->mode = VerifyMode::kApproximate;
    run.kv = KvMode::kHost;
    const GenerateResult host = engine.generate(ids, run, nullptr);
    run.kv = KvMode::kDevice;
    const GenerateResult device = engine.generate(ids, run, nullptr);
    EXPECT_EQ(host.token_ids, device.token_ids) << partial_kind_name(kind);
    EXPECT_EQ(host.speculation.steps, device.speculation.steps);
    EXPECT_EQ(host.token_ids.size(), static_cast<size_t>(kAnswer));
    expect_both_kinds_of_steps(host);
  }
}

}  // namespace
}  // namespace headrace
