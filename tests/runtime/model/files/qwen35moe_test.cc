// Qwen3.5 with experts: a tiny model in a directory and in a GGUF file is one model; what the family refuses of them.
// qwen35_test.cc has what dense models share.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "offload/device/device.h"
#include "runtime/base/input_file.h"
#include "runtime/model/decoder_tensors.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/files/tensor_parts.h"
#include "runtime/model/weights.h"
#include "tests/runtime/model/files/same_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::expect_error;
using testing_support::tensor_values;
using testing_support::tiny_file;

constexpr int64_t kRouted = 6, kRoutedHidden = 48, kRoutedWidth = 16;

TEST(Qwen35Moe, SpecOfTheDirectory) {
  const auto model = open_checkpoint(tiny_file("qwen35moe"));
  const ModelConfig& config = model->config();
  EXPECT_EQ(config.family, "qwen35moe");
  ASSERT_EQ(config.layer_count(), 4);
  const FfnSpec ffn = {
      .width = kRoutedWidth,
      .experts = ExpertsSpec{.count = kRouted, .used = 2, .width = kRoutedWidth, .normalised = true, .shared = true}};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(config.layer(i).ffn, ffn) << i;
    EXPECT_EQ(config.layer(i).has_attention(), i == 3);
  }
  ASSERT_TRUE(config.mtp);
  EXPECT_EQ(config.mtp->layer.ffn, ffn);
  EXPECT_TRUE(config.images);
  EXPECT_EQ(
      layers_text(config),
      "4 layers of 48, 3 of them recurrent, 2 heads and 1 KV heads of 32, 2 of 6 experts with FFN 16 and a shared "
      "one with FFN 16");
  // Nothing in the files that has no use: what reads images is passed over.
  EXPECT_EQ(model->tensors().size(), decoder_tensors(config).size());
}

TEST(Qwen35Moe, BothFormatsGiveOneSpec) {
  const auto directory = open_checkpoint(tiny_file("qwen35moe")), gguf = open_checkpoint(tiny_file("qwen35moe.gguf"));
  std::vector<LayerSpec> layers = gguf->config().layers;
  for (LayerSpec& layer : layers)
    if (!layer.has_attention()) std::get<DeltaNetSpec>(layer.mixer).tiled = false;
  EXPECT_EQ(layers, directory->config().layers);
  EXPECT_EQ(gguf->config().mtp, directory->config().mtp);
  testing_support::expect_same_sizes(*gguf, *directory);
}

// The tensors of the feed-forward parts, MTP's among them.
TEST(Qwen35Moe, BothFormatsHaveTheSameExperts) {
  const auto directory = open_checkpoint(tiny_file("qwen35moe")), gguf = open_checkpoint(tiny_file("qwen35moe.gguf"));
  const std::vector<DecoderTensor> tensors = decoder_tensors(directory->config());
  EXPECT_EQ(gguf->tensors().size(), tensors.size());
  int64_t compared = 0;
  for (const DecoderTensor& tensor : tensors) {
    if (tensor.name.find(".mlp.") == std::string::npos) continue;
    EXPECT_EQ(tensor_values(*gguf, tensor), tensor_values(*directory, tensor)) << tensor.name;
    ++compared;
  }
  EXPECT_EQ(compared, 5 * (3 * kRouted + 3 + 2));
}

std::vector<float> loaded_floats(const Weight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.rows() * weight.cols));
  std::memcpy(values.data(), weight.parts[0].data, values.size() * sizeof(float));
  return values;
}

// The shared expert's gate is the router's last row.
TEST(Qwen35Moe, LayersAreLoaded) {
  for (const char* file : {"qwen35moe", "qwen35moe.gguf"}) {
    const auto model = open_checkpoint(tiny_file(file));
    const auto device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
    Weights weights = Weights::reserve(*model, *device, {DType::kF32});
    ASSERT_TRUE(weights.load(*model, *device, nullptr, nullptr));
    for (const auto& [layer, prefix] :
         {std::pair(&weights.layer(1), "model.layers.1.mlp."), std::pair(&weights.mtp()->layer, "mtp.layers.0.mlp.")}) {
      const auto values = [&, of = std::string(prefix)](const char* name, int64_t rows, int64_t cols) {
        return tensor_values(*model, {of + name, {rows, cols}});
      };
      std::vector<float> router = values("gate.weight", kRouted, kRoutedHidden);
      const std::vector<float> gate = values("shared_expert_gate.weight", 1, kRoutedHidden);
      router.insert(router.end(), gate.begin(), gate.end());
      EXPECT_EQ(loaded_floats(layer->experts.router), router);
      std::vector<float> gate_up = values("shared_expert.gate_proj.weight", kRoutedWidth, kRoutedHidden);
      const std::vector<float> up = values("shared_expert.up_proj.weight", kRoutedWidth, kRoutedHidden);
      gate_up.insert(gate_up.end(), up.begin(), up.end());
      EXPECT_EQ(loaded_floats(layer->gate_up), gate_up);
      EXPECT_EQ(loaded_floats(layer->down), values("shared_expert.down_proj.weight", kRoutedHidden, kRoutedWidth));
      EXPECT_EQ(loaded_floats(layer->experts.down), values("experts.0.down_proj.weight", kRoutedHidden, kRoutedWidth));
    }
  }
}

// llama-quantize stores the gate as a vector, the converter as a matrix of one row.
TEST(Qwen35Moe, TheSharedGateMayBeAVector) {
  const auto model = open_checkpoint(tiny_file("qwen35moe.gguf"));
  const std::string name = "model.layers.0.mlp.shared_expert_gate.weight";
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{kRoutedHidden}, {1, kRoutedHidden}}) {
    const std::vector<TensorPart> parts =
        decoder_parts(model->config(), {{name, shape, "F32", kRoutedHidden * sizeof(float)}}, "a.gguf", {});
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].tensor.name, name);
    EXPECT_EQ(parts[0].tensor.shape, (std::vector<int64_t>{1, kRoutedHidden}));
  }
}

json routed_config() { return json::parse(read_small_file(tiny_file("qwen35moe") + "/config.json", 1 << 16)); }
ModelConfig parse_routed(const json& config) { return parse_config_json(config.dump(), "a/config.json"); }

TEST(Qwen35Moe, ConfigInItsForms) {
  const ModelConfig nested = parse_routed(routed_config());
  json flat = routed_config()["text_config"];
  EXPECT_EQ(parse_routed(flat).layers, nested.layers);
  EXPECT_FALSE(parse_routed(flat).images);
  flat["architectures"] = {"Qwen3_5MoeForCausalLM"};
  flat["mlp_only_layers"] = json::array();
  EXPECT_EQ(parse_routed(flat).mtp, nested.mtp);
  for (const char* key :
       {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"})
    flat.erase(key);
  const FfnSpec usual = {
      .width = 512, .experts = ExpertsSpec{.count = 256, .used = 8, .width = 512, .normalised = true, .shared = true}};
  EXPECT_EQ(parse_routed(flat).layers.front().ffn, usual);
}

TEST(Qwen35Moe, ConfigRefusesByKeyAndValues) {
  const std::initializer_list<std::pair<const char*, const char*>> kRefusals = {
      {R"({"num_experts_per_tok": 7})", "text_config.num_experts_per_tok 7 is above num_experts 6"},
      {R"({"num_experts_per_tok": 0})", "text_config.num_experts_per_tok 0"},
      {R"({"num_experts": 1025})", "text_config.num_experts 1025"},
      {R"({"moe_intermediate_size": 0})", "text_config.moe_intermediate_size 0"},
      {R"({"shared_expert_intermediate_size": 0})", "text_config.shared_expert_intermediate_size 0"},
      {R"({"decoder_sparse_step": 2})", "text_config.decoder_sparse_step 2"},
      {R"({"mlp_only_layers": [1]})", "text_config.mlp_only_layers [1]"},
      {R"({"model_type": "qwen3_5_text"})", "text_config.model_type \"qwen3_5_text\" is not supported"},
  };
  for (const auto& [changes, part] : kRefusals) {
    SCOPED_TRACE(changes);
    json config = routed_config();
    config["text_config"].merge_patch(json::parse(changes));
    expect_error(ExitCode::kBadInput, "a/config.json", {part}, [&] { parse_routed(config); });
  }
}

// The tiny directory with another config.
TEST(Qwen35Moe, ShapesThatDisagreeAreNamed) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", read_small_file(tiny_file("qwen35moe") + "/model.safetensors", 1 << 20));
  const std::string experts = ".mlp.experts.", shared = "model.layers.0.mlp.shared_expert";
  for (const auto& [key, value, parts] : std::initializer_list<std::tuple<const char*, int, std::vector<std::string>>>{
           {"num_experts", 5, {experts, "has the shape [6, ", "asks for [5, "}},
           {"moe_intermediate_size", 24, {experts, "[6, 48, 16]", "[6, 48, 24]"}},
           {"shared_expert_intermediate_size", 24, {shared + ".gate_proj.weight", "[16, 48]", "[24, 48]"}}}) {
    SCOPED_TRACE(key);
    json config = routed_config();
    config["text_config"][key] = value;
    folder.write("config.json", config.dump());
    expect_error(ExitCode::kBadInput, folder.path(), parts, [&] { open_checkpoint(folder.path()); });
  }
}

using Change = std::function<void(GgufFile*)>;

ModelConfig routed_gguf_with(const Change& change) {
  const InputFile input(tiny_file("qwen35moe.gguf"));
  GgufFile file = parse_gguf(input);
  change(&file);
  return gguf_config(file, input);
}

Change routed_number(const std::string& key, uint32_t value) {
  return [=](GgufFile* file) {
    file->metadata["qwen35moe." + key] = {GgufType::kU32, false, 1, testing_support::raw_bytes(value)};
  };
}

TEST(Qwen35Moe, GgufRefusesByKeyAndValues) {
  const std::vector<std::pair<Change, std::string>> refusals = {
      {routed_number("expert_used_count", 7), "qwen35moe.expert_used_count 7 is above expert_count 6"},
      {routed_number("expert_count", 0), "qwen35moe.expert_count is 0"},
      {routed_number("expert_count", 1025), "qwen35moe.expert_count is 1025"},
      {routed_number("expert_shared_feed_forward_length", 0), "qwen35moe.expert_shared_feed_forward_length is 0"},
      {[](GgufFile* file) { file->metadata.erase("qwen35moe.expert_feed_forward_length"); },
       "qwen35moe.expert_feed_forward_length"},
      {routed_number("nextn_predict_layers", 2), "qwen35moe.nextn_predict_layers is 2"},
  };
  for (const auto& [change, part] : refusals) {
    SCOPED_TRACE(part);
    expect_error(ExitCode::kBadInput, tiny_file("qwen35moe.gguf"), {part}, [&, c = change] { routed_gguf_with(c); });
  }
  const ModelConfig wider = routed_gguf_with(routed_number("expert_shared_feed_forward_length", 40));
  EXPECT_EQ(wider.layers.front().ffn.width, 40);
  EXPECT_EQ(wider.mtp->layer.ffn.width, 40);
  const ModelConfig unsaid =
      routed_gguf_with([](GgufFile* file) { file->metadata.erase("qwen35moe.expert_shared_feed_forward_length"); });
  EXPECT_EQ(unsaid.layers.front().ffn.width, kRoutedWidth);
}

}  // namespace
}  // namespace headrace
