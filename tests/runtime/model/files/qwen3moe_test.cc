// Qwen3-MoE: a tiny model in a directory, in one whose experts are fused, and in a GGUF file is one model; what the
// family refuses.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "offload/device/device.h"
#include "runtime/base/input_file.h"
#include "runtime/model/decoder_tensors.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/weights.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/runtime/model/files/same_model.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::expect_error;

const std::string kMoe = HEADRACE_TEST_DATA "/tiny/qwen3moe", kMoeGguf = HEADRACE_TEST_DATA "/tiny/qwen3moe.gguf";
constexpr int64_t kExpertCount = 8, kMoeHidden = 64, kMoeWidth = 16;

std::vector<float> moe_values(const Checkpoint& model, const std::string& name) {
  const TensorInfo* const info = model.find(name);
  EXPECT_NE(info, nullptr) << name;
  if (info == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(info->rows() * info->cols()));
  model.read_rows(*info, 0, info->rows(), DType::kF32, values.data());
  return values;
}

std::string expert(int64_t layer, int64_t index, const char* name) {
  return str("model.layers.", layer, ".mlp.experts.", index, ".", name, ".weight");
}

TEST(Qwen3Moe, SpecOfTheDirectory) {
  const auto model = open_checkpoint(kMoe);
  const ModelConfig& config = model->config();
  EXPECT_EQ(config.family, "qwen3moe");
  ASSERT_EQ(config.layer_count(), 3);
  for (const LayerSpec& layer : config.layers) {
    EXPECT_EQ(layer.attention(), (AttentionSpec{.heads = 4, .kv_heads = 2, .head_dim = 24, .qk_norm = true}));
    ASSERT_TRUE(layer.ffn.experts);
    EXPECT_EQ(*layer.ffn.experts,
              (ExpertsSpec{.count = kExpertCount, .used = 2, .width = kMoeWidth, .normalised = true}));
    EXPECT_EQ(layer.ffn.width, 0);
  }
  EXPECT_EQ(layers_text(config), "3 layers of 64, 4 heads and 2 KV heads of 24, 2 of 8 experts with FFN 16");
}

TEST(Qwen3Moe, BothFormatsAreOneModel) {
  const auto directory = open_checkpoint(kMoe), gguf = open_checkpoint(kMoeGguf);
  EXPECT_EQ(gguf->config().layers, directory->config().layers);
  testing_support::expect_same_sizes(*gguf, *directory);
  testing_support::expect_same_tensors(*gguf, *directory);
}

// Weights are laid out expert after expert, at one distance.
TEST(Qwen3Moe, ExpertsAreLoaded) {
  for (const std::string& path : {kMoe, kMoeGguf}) {
    const auto model = open_checkpoint(path);
    const auto device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
    Weights weights = Weights::reserve(*model, *device, {DType::kF32});
    ASSERT_TRUE(weights.load(*model, *device, nullptr, nullptr));
    const ExpertWeights& w = weights.layer(1).experts;
    EXPECT_EQ(weights.layer(1).gate_up, nullptr);
    EXPECT_EQ(w.router.rows(), kExpertCount);
    EXPECT_EQ(w.gate_up.rows(), 2 * kMoeWidth);
    EXPECT_EQ(w.down.rows(), kMoeHidden);
    const auto floats_of = [](const Weight& weight, uint64_t stride, int64_t index) {
      std::vector<float> values(static_cast<size_t>(weight.rows() * weight.cols));
      std::memcpy(values.data(),
                  static_cast<const std::byte*>(weight.parts[0].data) + stride * static_cast<uint64_t>(index),
                  values.size() * sizeof(float));
      return values;
    };
    for (int64_t e = 0; e < kExpertCount; ++e) {
      std::vector<float> expected = moe_values(*model, expert(1, e, "gate_proj"));
      const std::vector<float> up = moe_values(*model, expert(1, e, "up_proj"));
      expected.insert(expected.end(), up.begin(), up.end());
      EXPECT_EQ(floats_of(w.gate_up, w.gate_up_stride, e), expected) << e;
      EXPECT_EQ(floats_of(w.down, w.down_stride, e), moe_values(*model, expert(1, e, "down_proj"))) << e;
    }
  }
}

// As transformers 5 has them in memory: one tensor for gate and up of all experts, and one for down.
class FusedDirectory {
 public:
  FusedDirectory() {
    const auto model = open_checkpoint(kMoe);
    for (const DecoderTensor& tensor : decoder_tensors(model->config()))
      if (tensor.name.find(".mlp.experts.") == std::string::npos)
        add(tensor.name, tensor.shape, moe_values(*model, tensor.name));
    for (int64_t layer = 0; layer < 3; ++layer) {
      std::vector<float> gate_up, down;
      for (int64_t e = 0; e < kExpertCount; ++e) {
        append(&gate_up, moe_values(*model, expert(layer, e, "gate_proj")));
        append(&gate_up, moe_values(*model, expert(layer, e, "up_proj")));
        append(&down, moe_values(*model, expert(layer, e, "down_proj")));
      }
      const std::string prefix = str("model.layers.", layer, ".mlp.experts.");
      add(prefix + "gate_up_proj", {kExpertCount, 2 * kMoeWidth, kMoeHidden}, gate_up);
      add(prefix + "down_proj", {kExpertCount, kMoeHidden, kMoeWidth}, down);
    }
  }
  json header = json::object();
  void write(const TemporaryFolder& folder, const json& config) const {
    std::string text = header.dump();
    text.resize(round_up(text.size(), 8), ' ');
    const uint64_t length = text.size();
    std::string file(reinterpret_cast<const char*>(&length), sizeof length);
    folder.write("model.safetensors", file + text + data_);
    folder.write("config.json", config.dump());
  }

 private:
  static void append(std::vector<float>* to, const std::vector<float>& values) {
    to->insert(to->end(), values.begin(), values.end());
  }
  void add(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
    const size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }
  std::string data_;
};

json moe_config() { return json::parse(read_small_file(kMoe + "/config.json", 1 << 16)); }

TEST(Qwen3Moe, FusedExpertsAreTheSame) {
  const TemporaryFolder folder;
  FusedDirectory().write(folder, moe_config());
  const auto fused = open_checkpoint(folder.path()), separate = open_checkpoint(kMoe);
  for (const DecoderTensor& tensor : decoder_tensors(separate->config())) {
    fused->require(tensor.name, tensor.shape);
    EXPECT_EQ(moe_values(*fused, tensor.name), moe_values(*separate, tensor.name)) << tensor.name;
  }
}

TEST(Qwen3Moe, RefusesFusedExpertsOfAnotherShape) {
  const TemporaryFolder folder;
  json config = moe_config();
  config["num_local_experts"] = 7;
  FusedDirectory().write(folder, config);
  expect_error(ExitCode::kBadInput, folder.path(),
               {"model.layers.0.mlp.experts.", "_proj has the shape [8, ", "; its config asks for [7, "},
               [&] { open_checkpoint(folder.path()); });
}

TEST(Qwen3Moe, RefusesMissingExperts) {
  const TemporaryFolder folder;
  json config = moe_config();
  config["num_local_experts"] = 9;
  folder.write("model.safetensors", read_small_file(kMoe + "/model.safetensors", 1 << 20));
  folder.write("config.json", config.dump());
  expect_error(ExitCode::kBadInput, folder.path(), {"model.layers.0.mlp.gate.weight", "[8, 64]", "[9, 64]"},
               [&] { open_checkpoint(folder.path()); });
}

TEST(Qwen3Moe, RefusesWhatTheConfigSays) {
  const auto refused = [](const char* changes, const std::string& part) {
    json config = moe_config();
    config.merge_patch(json::parse(changes));
    expect_error(ExitCode::kBadInput, "a/config.json", {part},
                 [&] { parse_config_json(config.dump(), "a/config.json"); });
  };
  refused(R"({"num_experts_per_tok": 9})", "num_experts_per_tok 9 is above num_local_experts 8");
  refused(R"({"num_experts_per_tok": 0})", "num_experts_per_tok 0");
  refused(R"({"num_local_experts": 1025})", "num_local_experts 1025");
  refused(R"({"decoder_sparse_step": 2})", "decoder_sparse_step 2");
  refused(R"({"mlp_only_layers": [1]})", "mlp_only_layers [1]");
  refused(R"({"mlp_only_layers": 1})", "mlp_only_layers 1");
  refused(R"({"moe_intermediate_size": 0})", "moe_intermediate_size 0");
  refused(R"({"use_sliding_window": true, "sliding_window": 512})", "sliding_window 512");
}

// Experts of which some are missing have a shape of their own in a GGUF file.
TEST(Qwen3Moe, RefusesWhatAGgufSays) {
  using W = testing_support::GgufWriter;
  const auto refused = [](const auto& forge, const std::string& part) {
    const TemporaryFolder folder;
    W writer = testing_support::small_gguf("qwen3moe");
    forge(writer);
    const std::string path = folder.write("forged.gguf", writer.finish());
    expect_error(ExitCode::kBadInput, path, {part}, [&] { open_checkpoint(path); });
  };
  const auto experts = [](W& w, uint32_t count, uint32_t used) {
    w.add_u32("qwen3moe.expert_count", count);
    w.add_u32("qwen3moe.expert_used_count", used);
  };
  refused([&](W&) {}, "qwen3moe.expert_count");
  refused([&](W& w) { experts(w, 4, 5); }, "qwen3moe.expert_used_count 5 is above expert_count 4");
  refused([&](W& w) { experts(w, 0, 1); }, "qwen3moe.expert_count is 0");
  refused(
      [&](W& w) {
        experts(w, 4, 2);
        w.add_tensor({"blk.0.ffn_up_exps.weight", {32, 16, 3}, 0, std::string(3 * 16 * 32 * 4, '\0'), {}, {}});
      },
      "model.layers.0.mlp.experts.up_proj.weight has the shape [3, 16, 32]; its config asks for [4, 16, 32]");
}

TEST(Qwen3Moe, KeysHaveTheirDefaults) {
  json config = moe_config();
  for (const char* key : {"num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"})
    config.erase(key);
  EXPECT_EQ(*parse_config_json(config.dump(), "a/config.json").layers.front().ffn.experts,
            (ExpertsSpec{.count = 128, .used = 8, .width = 768, .normalised = false}));
  config["num_experts"] = 16;
  EXPECT_EQ(parse_config_json(config.dump(), "a/config.json").layers.front().ffn.experts->count, 16);
}

}  // namespace
}  // namespace headrace
