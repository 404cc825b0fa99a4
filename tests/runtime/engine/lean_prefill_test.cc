// A lean prefill, which has one dequantised matrix at a time (docs/design.md, section 5): it gives the bits of any
// other, and a run has it only where nothing fits otherwise.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/device/dry_run_device.h"
#include "runtime/engine/engine.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/engine_search.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::Room;
using testing::Session;

// ---- On paper -------------------------------------------------------------------------------------------------------

struct PaperRun {
  std::string shape;
  const char* weights = "q4_k_m";  // empty: bf16
  int64_t prompt = 65304;
  GenerateOptions run{};
  Backend backend = Backend::kCuda;
  std::optional<DType> cache{};
};

PaperRun qwen3_32b(VerifyMode mode, int64_t budget) {
  PaperRun of{.shape = "qwen3-32b"};
  of.run = {.max_tokens = 256, .kv = KvMode::kHost};
  of.run.verify = VerifyOptions{.mode = mode, .partial = PartialKind::kBlocks, .budget = budget};
  return of;
}

// None: it does not fit.
std::optional<RunPlan> plan_on(uint64_t vram_bytes, const PaperRun& of) {
  Shape shape = find_shape(of.shape);
  shape.config.max_positions = 65560;
  EngineOptions options;
  options.weights_place = WeightsPlace::kDevice;
  options.prefill = PrefillType::kCompute;               // in 8 bits a lean prefill saves half as much
  options.host_states = options.host_embedding = false;  // a lean prefill is what is left
  options.want_tokenizer = false;
  options.cache_type_k = options.cache_type_v = of.cache;
  const DryRunCard card{.name = "paper",
                        .backend = of.backend,
                        .vram_bytes = vram_bytes,
                        .host_bytes = of.backend == Backend::kCpu ? vram_bytes : 40 * kGiB,
                        .taken_bytes = of.backend == Backend::kCpu ? 0 : kDryRunContextBytes};
  try {
    const Engine engine(options, make_random_checkpoint(shape.name, shape.config, 0, find_weight_mixture(of.weights)),
                        open_dry_run_device(card));
    return engine.plan(of.prompt, of.run);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit) << error.what();
    return std::nullopt;
  }
}

// The least device memory with which the run fits and is not lean (`lean`: or is), to the page.
uint64_t least_vram(const PaperRun& of, bool lean) {
  uint64_t low = 0, high = 96 * kGiB / kPageBytes;
  while (low + 1 < high) {
    const uint64_t middle = (low + high) / 2;
    const std::optional<RunPlan> plan = plan_on(middle * kPageBytes, of);
    (plan && (lean || !plan->memory.lean_prefill) ? high : low) = middle;
  }
  return high * kPageBytes;
}

uint64_t prefill_line(const RunPlan& plan) {
  for (const PlanLine& line : plan.memory.lines) {
    if (line.what.find("prefill:") == 0) return line.bytes;
  }
  return 0;
}

// Blocks come late first. Then prefill has a layer's largest matrix alone, and what that saves is what fits more.
TEST(LeanPrefill, IsPlannedWhereNothingFitsOtherwise) {
  const uint64_t others = 2 * 5120 * (80 * 128 + 64 * 128 + 25600);  // without gate and up
  for (const VerifyMode mode : {VerifyMode::kLossless, VerifyMode::kFull}) {
    const PaperRun of = qwen3_32b(mode, 2048);
    const uint64_t usual = least_vram(of, false), least = least_vram(of, true);
    const RunPlan last = plan_on(usual, of).value(), lean = plan_on(least, of).value();
    EXPECT_FALSE(last.memory.lean_prefill);
    EXPECT_TRUE(plan_on(usual - kPageBytes, of).value().memory.lean_prefill);
    EXPECT_TRUE(lean.memory.lean_prefill);
    EXPECT_EQ(prefill_line(lean), prefill_line(last) - others);
    EXPECT_LE(lean.memory.vram_bytes + whole_pages(lean.weights_bytes) + kDryRunContextBytes, least);
    EXPECT_LT(least, usual);
    EXPECT_GE(least, usual - others);
    EXPECT_FALSE(plan_on(usual + 4 * kGiB, of).value().memory.lean_prefill);
    const bool blocks = mode == VerifyMode::kLossless;
    EXPECT_EQ(last.memory.late_partial, blocks);
    EXPECT_EQ(lean.memory.late_partial, blocks);
    if (!blocks) {
      EXPECT_EQ(least, usual - others) << "decoding needs less than prefill";
    }
  }
}

// --partial-kv auto has a poorer copy before a lean prefill. Copies of this cache are made beside prefill.
TEST(LeanPrefill, ComesAfterEveryKindOfPartialKv) {
  PaperRun of{.shape = "llama-3.1-8b", .run = {.max_tokens = 256, .kv = KvMode::kHost}};
  of.run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .partial = PartialKind::kInt8};
  of.cache = DType::kInt8;
  const uint64_t vram = least_vram(of, false) - kPageBytes;
  EXPECT_TRUE(plan_on(vram, of).value().memory.lean_prefill);
  of.run.verify->partial = PartialKind::kAuto;
  const RunPlan plan = plan_on(vram, of).value();
  EXPECT_EQ(plan.partial.copy, DType::kInt4);
  EXPECT_FALSE(plan.memory.lean_prefill);
}

// With fewer blocks. With the usual ones decoding needs as much as prefill did, and a lean prefill saves nothing.
TEST(LeanPrefill, OfTheShapeOf32BFitsWhereFewerBlocksDo) {
  constexpr uint64_t kVram = 22 * kGiB + 512 * kMiB;
  const std::optional<RunPlan> plan = plan_on(kVram, qwen3_32b(VerifyMode::kLossless, 3328));
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->memory.lean_prefill);
  EXPECT_TRUE(plan->memory.late_partial);
  EXPECT_LE(plan->memory.vram_bytes + whole_pages(plan->weights_bytes) + kDryRunContextBytes, kVram);
  EXPECT_FALSE(plan_on(kVram, qwen3_32b(VerifyMode::kLossless, 4096)));
}

// Nothing is dequantised there, so there is nothing to save.
TEST(LeanPrefill, IsNoneWithPlainWeightsOrOnACpu) {
  PaperRun of{.shape = "llama-3.2-1b", .weights = "", .prompt = 16384};
  EXPECT_EQ(least_vram(of, true), least_vram(of, false));
  of = {.shape = "llama-3.2-1b", .prompt = 16384, .backend = Backend::kCpu};
  EXPECT_EQ(least_vram(of, true), least_vram(of, false));
}

// ---- On a device ----------------------------------------------------------------------------------------------------

constexpr int64_t kPrompt = 1300;

// Its matrices are of two types, and in some layers a matrix has parts of both.
ModelConfig small_config() {
  ModelConfig config;
  config.family = "llama";
  config.layers = same_layers(3, {.mixer = AttentionSpec{.heads = 8, .kv_heads = 4, .head_dim = 64}, .ffn = {1024}});
  config.hidden = 512;
  config.vocab = 512;
  config.max_positions = 16384;
  return config;
}
constexpr uint64_t kOtherMatrices = 2 * 512 * (16 * 64 + 8 * 64 + 1024);  // of a layer, without gate and up
std::unique_ptr<Checkpoint> small_model() {
  return make_random_checkpoint("small", small_config(), 3, find_weight_mixture("q4_k_m"));
}

class LeanPrefillBits : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  static bool cuda() { return GetParam() == DeviceChoice::kCuda; }
};
INSTANTIATE_TEST_SUITE_P(Devices, LeanPrefillBits, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

// Prompts of one group and of several, the last of them short; and the memory is what the plan says.
TEST_P(LeanPrefillBits, AreThoseOfAnyPrefill) {
  const std::unique_ptr<Checkpoint> checkpoint = small_model();
  const auto device = open_device({.choice = GetParam(), .threads = 2});
  Weights weights = Weights::reserve(*checkpoint, *device, {DType::kBF16, WeightPolicy::kKeep});
  weights.load(*checkpoint, *device, nullptr, nullptr);
  const auto compute = device->make_stream("compute", StreamRole::kCompute);
  for (const int64_t prompt : {int64_t{300}, kPrompt}) {
    std::vector<std::vector<float>> usual, lean;
    uint64_t planned = 0;
    for (std::vector<std::vector<float>>* const logits : {&usual, &lean}) {
      SessionOptions options{.prompt_tokens = prompt, .context_tokens = prompt + 8};
      options.prefill_group = 512;
      options.lean_prefill = logits == &lean;
      const uint64_t before = device->vram().used_bytes();
      device->vram().reset_peak();
      Session session(testing::plan_session(*device, *compute, checkpoint->config(), weights, options));
      EXPECT_EQ(session.plan().lean_prefill, options.lean_prefill);
      testing::decode_plainly(session, testing::made_up_ids(prompt, 512), 4, logits);
      EXPECT_LE(device->vram().peak_bytes() - before, session.plan().vram_bytes);
      if (logits == &usual) planned = session.plan().vram_bytes;
      if (logits == &lean && prompt == kPrompt) {
        EXPECT_EQ(planned - session.plan().vram_bytes, cuda() ? kOtherMatrices : 0);
      }
    }
    EXPECT_TRUE(lean == usual) << prompt;
  }
}

// A whole run in a budget that has room for nothing else: without a partial KV, and with blocks that come late, too. A
// CPU's prefill dequantises no matrices, so there the GPU is one of paper, which only plans.
TEST_P(LeanPrefillBits, AreThoseOfARunInLittleMemory) {
  EngineOptions options;
  options.device = {.choice = GetParam(), .threads = 2};
  options.want_tokenizer = false;
  options.prefill_group = 8192;  // for a model of this size: prefill's buffers are to be larger than a step's
  options.ring.slots = 2;
  options.host_states = options.host_embedding = false;
  const auto open = [](const EngineOptions& o) {
    if (cuda()) return std::make_unique<Engine>(o, small_model());
    const DryRunCard card{.name = "paper", .vram_bytes = o.device.vram_bytes, .host_bytes = 4 * kGiB};
    return std::make_unique<Engine>(o, small_model(), open_dry_run_device(card));
  };
  GenerateOptions run{.max_tokens = 60, .kv = KvMode::kHost, .sampling = {.temperature = 0.8f, .seed = 7}};
  run.ignore_eos = true;
  constexpr int64_t kLong = 8192 + 300;
  const std::vector<int32_t> ids = testing::repeated_ids(kLong, 512);
  std::vector<int32_t> plain;
  if (cuda()) plain = open(options)->generate(ids, run, nullptr).token_ids;
  for (const VerifyMode mode : {VerifyMode::kFull, VerifyMode::kLossless}) {
    run.verify = VerifyOptions{.mode = mode, .partial = PartialKind::kBlocks, .budget = 64, .interval = 10};
    const auto room_of = [](const MemoryPlan& plan) { return plan.lean_prefill ? Room::kWanted : Room::kTooMuch; };
    const std::unique_ptr<Engine> engine = testing::engine_with_room(&options, kLong, run, room_of, open);
    ASSERT_NE(engine, nullptr) << static_cast<int>(mode);
    if (!cuda()) continue;
    const GenerateResult said = engine->generate(ids, run, nullptr);
    EXPECT_TRUE(said.plan.lean_prefill);
    EXPECT_LE(said.memory.vram_peak_bytes, options.device.vram_bytes);
    EXPECT_EQ(said.token_ids, plain);
  }
}

}  // namespace
}  // namespace headrace
