// headrace plan of every known shape: its weights take what their types take, however they are mixed.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "runtime/commands/plan.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"

namespace headrace {
namespace {

struct TypeSizes {
  uint64_t all = 0, multiplied = 0;  // multiplied: by a step, without an embedding that is no head and an MTP block
  uint64_t experts = 0;              // a step multiplies some of them, which are not among those
  uint64_t in_host = 0;              // never on the device
};

// The type that a tensor has on a GPU. Recurrent layers' vectors, experts' factors and sinks are in f32, and recurrent
// layers' two narrow matrices plain, as are those of what tokens add to layers.
WeightType loaded_type(const TensorInfo& tensor, const ModelConfig& config, const WeightMixture* mixture) {
  const bool recurrent = tensor.name.find(".linear_attn.") != std::string::npos, matrix = tensor.shape.size() == 2;
  const bool factors = tensor.name.ends_with(".experts.scale") || tensor.name.ends_with(".self_attn.sinks");
  if (!matrix) return recurrent || factors ? WeightType::kF32 : WeightType::kBF16;
  const bool narrow = tensor.name.ends_with(".in_proj_a.weight") || tensor.name.ends_with(".in_proj_b.weight") ||
                      tensor.name.ends_with(".mlp.gate.weight") ||
                      tensor.name.ends_with(".mlp.shared_expert_gate.weight") ||
                      tensor.name.find("per_layer_") != std::string::npos;
  return mixture == nullptr || narrow ? WeightType::kBF16 : mixture_type(*mixture, config, tensor.name);
}

// By the type that a tensor has on a GPU.
std::map<std::string, TypeSizes> sizes_by_type(const Shape& shape, const WeightMixture* mixture) {
  std::map<std::string, TypeSizes> sizes;
  const std::unique_ptr<Checkpoint> checkpoint = make_random_checkpoint(shape.name, shape.config, 0, mixture);
  for (const TensorInfo& tensor : checkpoint->tensors()) {
    const bool matrix = tensor.shape.size() == 2, embedding = tensor.name == "model.embed_tokens.weight";
    const WeightType type = loaded_type(tensor, shape.config, mixture);
    TypeSizes& of_type = sizes[weight_type_info(type).name];
    const uint64_t stored = stored_weight_bytes(Backend::kCuda, type, tensor.rows(), tensor.cols());
    of_type.all += stored;
    if (tensor.name == "model.embed_tokens_per_layer.weight") {  // in host memory
      of_type.in_host += stored;
      continue;
    }
    const bool draft = tensor.name.starts_with("mtp.");
    const bool multiplied = matrix && !draft && (!embedding || shape.config.tied_head);
    const bool expert = tensor.name.find(".experts.") != std::string::npos;
    if (multiplied) (expert ? of_type.experts : of_type.multiplied) += weight_bytes(type, tensor.rows(), tensor.cols());
  }
  return sizes;
}

void check_plan(const Shape& shape, const WeightMixture* mixture) {
  const std::string what = str(shape.name, " ", mixture != nullptr ? mixture->name : "bf16");
  PlanOptions options;
  options.shape = shape.name;
  options.shape_weights = mixture;
  options.gpu = "h200";
  options.engine.ctx_size = 4096;
  options.engine.device.host_mem_bytes = 64 * kGiB;
  const PlanReport report = make_plan_report(options);
  const std::map<std::string, TypeSizes> expected = sizes_by_type(shape, mixture);
  uint64_t sum = 0;
  for (const auto& [type, sizes] : expected) sum += sizes.all - sizes.in_host;
  if (!report.run) {  // 70B in bf16
    EXPECT_GT(sum + 8 * kGiB, report.vram_limit_bytes) << what << ": " << report.refusal;
    return;
  }
  std::map<std::string, uint64_t> planned;
  for (const WeightTypeUse& use : report.run->weight_types) planned[use.loaded] += use.bytes;
  EXPECT_EQ(planned.size(), expected.size()) << what;
  for (const auto& [type, sizes] : expected) EXPECT_EQ(planned[type], sizes.all) << what << ", " << type;
  // Beside them there is only what aligns them.
  EXPECT_GE(report.run->weights_bytes, sum) << what;
  EXPECT_LE(report.run->weights_bytes, sum + sum / 1000) << what;
  // What predictions of a step go by.
  const ModelSizes& sizes = report.run->sizes;
  uint64_t multiplied = 0;
  for (const auto& [type, of_type] : expected) multiplied += of_type.multiplied;
  EXPECT_EQ(sizes.layers_bytes() + sizes.head_bytes(), multiplied) << what;
  const size_t plain = expected.count("BF16") + expected.count("F32");
  EXPECT_EQ(sizes.quantised.size(), expected.size() - plain) << what;
  const auto expect_quantised = [&](const std::vector<QuantisedBytes>& quantised, uint64_t TypeSizes::*bytes) {
    for (const QuantisedBytes& each : quantised) {
      const auto found = expected.find(each.type);
      ASSERT_NE(found, expected.end()) << what << ", " << each.type;
      EXPECT_EQ(each.bytes, found->second.*bytes) << what << ", " << each.type;
    }
  };
  expect_quantised(sizes.quantised, &TypeSizes::multiplied);
  expect_quantised(sizes.experts.quantised, &TypeSizes::experts);
  uint64_t experts = 0;
  for (const auto& [type, of_type] : expected) experts += of_type.experts;
  EXPECT_EQ(sizes.experts.stored_bytes, experts) << what;
  ASSERT_TRUE(report.predicted) << what;
  EXPECT_GT(report.predicted->full.ms(), 0) << what;
  if (experts == 0) {
    EXPECT_EQ(report.predicted->full.weight_bytes, multiplied) << what;
  } else {  // 8 of 128 for a token, 4 of 32 or of 128
    const ExpertsSpec& of_layer = *shape.config.layers.front().ffn.experts;
    EXPECT_NEAR(static_cast<double>(report.predicted->full.weight_bytes - multiplied),
                static_cast<double>(experts) * static_cast<double>(of_layer.used) / static_cast<double>(of_layer.count),
                1)
        << what;
  }
}

TEST(PlanReport, OfEveryShapeHasTheSumOfItsTypes) {
  const WeightMixture* const q4_k_m = find_weight_mixture("q4_k_m");
  ASSERT_NE(q4_k_m, nullptr);
  int mixed = 0;
  for (const Shape& shape : known_shapes()) {
    check_plan(shape, nullptr);
    check_plan(shape, find_weight_mixture("q8_0"));
    if (shape.config.hidden % 256 == 0 && shape.config.layers.front().ffn.width % 256 == 0) {
      check_plan(shape, q4_k_m);
      ++mixed;
      continue;
    }
    try {  // smollm2-135m and others: rows that blocks of 256 do not divide
      check_plan(shape, q4_k_m);
      ADD_FAILURE() << shape.name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage) << error.what();
      EXPECT_NE(std::string(error.what()).find("q4_k_m stores model."), std::string::npos) << error.what();
    }
  }
  EXPECT_GE(mixed, 18);
}

// The reference: a prompt of 64K tokens of Llama-3.1-8B on an RTX 4090. Quantised weights are read in 8 bits unless
// another arithmetic is asked for.
TEST(PlanReport, ReadsQuantisedWeightsInInt8) {
  PlanOptions options;
  options.shape = "llama-3.1-8b";
  options.gpu = "rtx4090";
  options.engine.ctx_size = 65536 + 256;
  options.engine.device.host_mem_bytes = 32 * kGiB;
  const auto plan = [&](PrefillType type, const char* weights) {
    options.engine.prefill = type;
    options.shape_weights = weights != nullptr ? find_weight_mixture(weights) : nullptr;
    PlanReport report = make_plan_report(options);
    EXPECT_TRUE(report.run && report.predicted) << report.refusal;
    return report;
  };
  const PlanReport bf16 = plan(PrefillType::kCompute, "q4_k_m"), int8 = plan(PrefillType::kAuto, "q4_k_m");
  EXPECT_STREQ(bf16.run->prefill_type, "bf16");
  EXPECT_STREQ(int8.run->prefill_type, "int8");
  EXPECT_NEAR(bf16.predicted->prefill.ms() * 1e-3, 20.5, 0.5);
  EXPECT_LE(int8.predicted->prefill.ms() * 1e-3, 7.5);
  EXPECT_EQ(bf16.assumed, "");
  EXPECT_NE(int8.assumed, "");
  EXPECT_STREQ(plan(PrefillType::kAuto, nullptr).run->prefill_type, "bf16");
  EXPECT_STREQ(plan(PrefillType::kInt8, nullptr).run->prefill_type, "int8");
}

// Where the bytes of a hybrid go: its states, a second set of them and rows for 192 pending tokens and a tree of 16,
// and the MTP block's cache of 4 KiB a token. Its steps read the rows of 16 layers.
TEST(PlanReport, OfAHybridListsWhatItsLayersKeep) {
  PlanOptions options;
  options.shape = "qwen3.6-27b";
  options.shape_weights = find_weight_mixture("q4_k_m");
  options.gpu = "rtx4090";
  options.engine.ctx_size = 65536;
  options.engine.device.host_mem_bytes = 96 * kGiB;
  options.engine.draft.type = SpecType::kAuto;
  options.engine.draft.window = 0;  // all rows, although a window is planned to be a little faster
  const PlanReport report = make_plan_report(options);
  ASSERT_TRUE(report.run && report.predicted) << report.refusal;
  EXPECT_EQ(report.run->draft, "draft-mtp");
  EXPECT_EQ(report.run->pass_rows, 16);
  EXPECT_EQ(report.run->memory_note, "");
  std::map<std::string, uint64_t> lines;
  for (const PlanLine& line : report.run->memory.lines) lines[line.what] = line.bytes;
  constexpr uint64_t kStates = 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2),
                     kRow = 48 * (10240 * 2 + (2048 + 6144 + 48) * 4);
  EXPECT_NEAR(static_cast<double>(lines["recurrent states"]), static_cast<double>(kStates), 1e5);
  EXPECT_NEAR(static_cast<double>(lines["decode: what recurrent layers keep of pending tokens and passes"]),
              static_cast<double>(kStates + (16 + 192) * kRow), 1e6);
  EXPECT_GT(lines["the draft's KV cache and buffers"], 65536u * 4096);
  const Prediction& predicted = *report.predicted;
  EXPECT_EQ(predicted.full.state_bytes, 144 * kMiB);
  EXPECT_LE(predicted.full.kv_bytes, 65536u * 64 * kKiB);
  EXPECT_GT(predicted.full.kv_bytes, 65000u * 64 * kKiB);
  EXPECT_GT(predicted.draft_ms, 0);
  ASSERT_TRUE(predicted.estimate.has_value());
  EXPECT_NEAR(predicted.estimate->tau, 1.05, 1e-9);
}

// A lean prefill fits where no other does, takes longer, and is said.
TEST(PlanReport, SaysWherePrefillIsLean) {
  PlanOptions options;
  options.shape = "qwen3-32b";
  options.shape_weights = find_weight_mixture("q4_k_m");
  options.gpu = "rtx4090";
  options.engine.ctx_size = 65560;
  options.engine.prefill = PrefillType::kCompute;  // in 8 bits a layer's matrices take half of the room
  options.engine.kv = KvMode::kHost;
  options.engine.verify = {.mode = VerifyMode::kLossless, .partial = PartialKind::kBlocks, .budget = 3328};
  options.engine.device.host_mem_bytes = 40 * kGiB;
  options.engine.host_states = options.engine.host_embedding = false;  // which would make it fit as well
  options.engine.weights_place = WeightsPlace::kDevice;
  options.engine.device.vram_bytes = 23 * kGiB;
  const PlanReport usual = make_plan_report(options);
  options.engine.device.vram_bytes = 22 * kGiB + 512 * kMiB;
  const PlanReport lean = make_plan_report(options);
  EXPECT_NE(plan_json(usual).find("\"lean_prefill\": false"), std::string::npos);
  EXPECT_NE(plan_json(lean).find("\"lean_prefill\": true"), std::string::npos) << lean.refusal;
  ASSERT_TRUE(usual.predicted && lean.predicted);
  EXPECT_GT(lean.predicted->prefill.ms(), 1.05 * usual.predicted->prefill.ms());
}

}  // namespace
}  // namespace headrace
