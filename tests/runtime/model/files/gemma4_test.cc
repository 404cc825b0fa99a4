// Gemma 4: a tiny model in a directory and in a GGUF file is one model; what the family refuses.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/base/input_file.h"
#include "runtime/model/decoder_tensors.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/files/tensor_parts.h"
#include "runtime/model/weights.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/runtime/model/files/same_model.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::expect_error;
using testing_support::expect_same_sizes;
using testing_support::expect_same_tensors;
using testing_support::tiny_file;

TEST(Gemma4, SpecOfTheDirectory) {
  const auto model = open_checkpoint(tiny_file("gemma4"));
  const ModelConfig& config = model->config();
  EXPECT_EQ(config.family, "gemma4");
  ASSERT_EQ(config.layer_count(), 6);
  for (int64_t i = 0; i < 6; ++i) {
    const bool full = i == 2 || i == 5;
    const AttentionSpec attention = {.heads = 4,
                                     .kv_heads = full ? 1 : 2,
                                     .head_dim = full ? 32 : 16,
                                     .qk_norm = true,
                                     .window = full ? 0 : 64,
                                     .local_rope = !full,
                                     .scale = 1.0,
                                     .v_norm = true,
                                     .k_is_v = full};
    EXPECT_EQ(config.layer(i).attention(), attention) << i;
    EXPECT_EQ(config.layer(i).ffn, (FfnSpec{64, Activation::kGelu})) << i;
    EXPECT_TRUE(config.layer(i).output_norms && config.layer(i).scaled) << i;
  }
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.rope.turning_dims, 8);
  ASSERT_TRUE(config.local_rope);
  EXPECT_EQ(config.local_rope->theta, 1e4);
  EXPECT_EQ(config.local_rope->turning_dims, 0);
  EXPECT_EQ(config.logit_cap, 30);
  EXPECT_TRUE(config.tied_head && config.scaled_embedding);
  EXPECT_FALSE(config.images);
  EXPECT_EQ(config.attention().head_dim, 32);  // of the layers that see all rows
}

// The first quarter of the pairs turn, with the frequencies that they have among all.
TEST(Gemma4, ProportionalAngles) {
  const RopeTable table =
      make_rope_table({.theta = 1e6, .turning_dims = 8, .frequency_factors = {}}, {.head_dim = 32, .max_positions = 1});
  const RopeTable all = make_rope_table({.theta = 1e6, .frequency_factors = {}}, 32, 1);
  ASSERT_EQ(table.inv_freq.size(), 16u);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(table.inv_freq[i], i < 4 ? all.inv_freq[i] : 0.0f) << i;
}

TEST(Gemma4, ExpertsBesideTheDensePart) {
  const auto model = open_checkpoint(tiny_file("gemma4moe"));
  ASSERT_EQ(model->config().layer_count(), 4);
  EXPECT_TRUE(model->config().images);
  for (const LayerSpec& layer : model->config().layers) {
    EXPECT_EQ(layer.ffn.width, 64);
    EXPECT_EQ(layer.ffn.activation, Activation::kGelu);
    EXPECT_EQ(layer.ffn.experts, (ExpertsSpec{.count = 8, .used = 2, .width = 16, .normalised = true, .beside = true}));
  }
}

// The last two layers read the rows of layers 4 and 5, and have feed-forward parts of twice the width.
TEST(Gemma4, ATokenAddsToEachLayerOfAnEModel) {
  const auto model = open_checkpoint(tiny_file("gemma4e"));
  const ModelConfig& config = model->config();
  ASSERT_EQ(config.layer_count(), 8);
  EXPECT_TRUE(config.shares_rows());
  EXPECT_EQ(config.token_width(), 8);
  for (int64_t i = 0; i < 8; ++i) {
    const bool full = i == 2 || i == 5 || i == 7;
    const AttentionSpec attention = {.heads = 4,
                                     .kv_heads = 1,
                                     .head_dim = full ? 32 : 16,
                                     .qk_norm = true,
                                     .window = full ? 0 : 64,
                                     .local_rope = !full,
                                     .scale = 1.0,
                                     .v_norm = true,
                                     .rows_of = i == 6   ? 4
                                                : i == 7 ? 5
                                                         : -1};
    EXPECT_EQ(config.layer(i).attention(), attention) << i;
    EXPECT_EQ(config.layer(i).ffn, (FfnSpec{i < 6 ? 48 : 96, Activation::kGelu})) << i;
    EXPECT_EQ(config.layer(i).token_width, 8) << i;
  }
  EXPECT_EQ(config.kv_values(), 2 * 2 * 32);  // of layers 2 and 5
}

// The tiny E model with one tensor more, of eight zeros.
std::string with_tensor(const TemporaryFolder& folder, const std::string& name) {
  const std::string file = read_small_file(tiny_file("gemma4e") + "/model.safetensors", 1 << 20);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  json header = json::parse(file.substr(8, length));
  const std::string data = file.substr(8 + length);
  header[name] = {{"dtype", "F32"}, {"shape", {8}}, {"data_offsets", {data.size(), data.size() + 32}}};
  const std::string text = header.dump();
  length = text.size();
  folder.write("config.json", read_small_file(tiny_file("gemma4e") + "/config.json", 1 << 16));
  folder.write("model.safetensors", std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data +
                                        std::string(32, '\0'));
  return folder.path();
}

// Files may have K and V of layers that read those of others; nothing reads them.
TEST(Gemma4, WhatALayerWithoutKAndVHasInTheirPlaceIsNotRead) {
  const TemporaryFolder folder;
  for (const char* const name : {"k_proj", "v_proj", "k_norm"}) {
    const std::string path = with_tensor(folder, str("model.layers.7.self_attn.", name, ".weight"));
    EXPECT_NO_THROW(Weights::place(*open_checkpoint(path), Backend::kCpu, {DType::kF32})) << name;
  }
  for (const char* const name : {"model.layers.7.self_attn.x.weight", "model.layers.5.self_attn.k_norm.bias"}) {
    expect_error(ExitCode::kBadInput, folder.path(), {name},
                 [&] { Weights::place(*open_checkpoint(with_tensor(folder, name)), Backend::kCpu, {DType::kF32}); });
  }
}

TEST(Gemma4, TheTableOfTokenInputs) {
  const ModelConfig config = open_checkpoint(tiny_file("gemma4e"))->config();
  const std::string name = "model.embed_tokens_per_layer.weight";
  const auto parts = [&](const std::vector<int64_t>& shape, const char* type) {
    return decoder_parts(config, {{name, shape, type, 320 * 64 * 4}}, "a.gguf", {});
  };
  const std::vector<TensorPart> whole = parts({320, 64}, "F32");
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].tensor.shape, (std::vector<int64_t>{320 * 8, 8}));
  expect_error(ExitCode::kBadInput, "a.gguf", {name, "[320, 56]", "[320, 64]"}, [&] { parts({320, 56}, "F32"); });
  expect_error(ExitCode::kBadInput, "a.gguf", {name, "Q8_0", "blocks hold 32 weights", "the 8 that a token adds"}, [&] {
    parts({320, 64}, "Q8_0");
  });
}

class Gemma4Formats : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Gemma4Formats, ::testing::Values("gemma4", "gemma4moe", "gemma4e"),
                         [](const auto& model) { return std::string(model.param); });

TEST_P(Gemma4Formats, AreOneModel) {
  const std::string name = GetParam();
  const auto directory = open_checkpoint(tiny_file(name)), gguf = open_checkpoint(tiny_file(name + ".gguf"));
  const ModelConfig &a = directory->config(), &b = gguf->config();
  expect_same_sizes(*gguf, *directory);
  EXPECT_EQ(b.layers, a.layers);
  EXPECT_EQ(b.rope.turning_dims, a.rope.turning_dims);
  EXPECT_EQ(b.rope.frequency_factors, a.rope.frequency_factors);
  EXPECT_EQ(b.local_rope->theta, a.local_rope->theta);
  EXPECT_EQ(b.logit_cap, a.logit_cap);
  expect_same_tensors(*gguf, *directory);
}

json gemma4_config() { return json::parse(read_small_file(tiny_file("gemma4") + "/config.json", 1 << 16)); }
ModelConfig parse_gemma4(const json& config) { return parse_config_json(config.dump(), "a/config.json"); }
json gemma4_with(const std::string& changes) {
  json base = gemma4_config();
  const json patch = json::parse(changes);
  for (const auto& [key, value] : patch.items()) base[key] = value;
  return base;
}

TEST(Gemma4, FormsOfTheConfig) {
  json whole = {{"architectures", {"Gemma4UnifiedForConditionalGeneration"}},
                {"model_type", "gemma4_unified"},
                {"vision_config", json::object()},
                {"text_config", gemma4_config()}};
  whole["text_config"].erase("architectures");
  for (const char* type : {"gemma4_text", "gemma4_unified_text"}) {
    whole["text_config"]["model_type"] = type;
    const ModelConfig config = parse_gemma4(whole);
    EXPECT_EQ(config.layers, parse_gemma4(gemma4_config()).layers) << type;
    EXPECT_TRUE(config.images);
  }
  // Newer files name the layers' heads; these win.
  const ModelConfig named = parse_gemma4(gemma4_with(R"({"per_layer_config": {"2": {"head_dim": 64},
      "5": {"head_dim": 64, "num_key_value_heads": 2}, "0": {"num_key_value_heads": 4}}})"));
  EXPECT_EQ(named.layer(2).attention().head_dim, 64);
  EXPECT_EQ(named.layer(2).attention().kv_heads, 1);
  EXPECT_EQ(named.layer(5).attention().kv_heads, 2);
  EXPECT_EQ(named.layer(0).attention().kv_heads, 4);
  EXPECT_EQ(named.layer(1).attention().kv_heads, 2);
  // The last layer sees all rows, whatever the file says.
  const std::string sliding = "\"sliding_attention\"";
  const ModelConfig last = parse_gemma4(gemma4_with(R"({"layer_types": [)" + sliding + "," + sliding + "," + sliding +
                                                    "," + sliding + "," + sliding + "," + sliding + "]}"));
  EXPECT_EQ(last.layer(4).attention().window, 64);
  EXPECT_EQ(last.layer(5).attention().window, 0);
  EXPECT_EQ(parse_gemma4(gemma4_with(R"({"final_logit_softcapping": null})")).logit_cap, 0);
  const ModelConfig separate = parse_gemma4(gemma4_with(R"({"attention_k_eq_v": false})"));
  EXPECT_FALSE(separate.layer(5).attention().k_is_v);
  EXPECT_EQ(separate.layer(5).attention().kv_heads, 2);  // the global number counts where K is V
}

TEST(Gemma4, ConfigRefusesByKeyAndValues) {
  const std::initializer_list<std::pair<const char*, std::vector<std::string>>> kRefusals = {
      {R"({"sliding_window": 0})", {"sliding_window 0"}},
      {R"({"num_hidden_layers": 8})", {"layer_types holds 6 layers, but num_hidden_layers is 8"}},
      {R"({"num_key_value_heads": 3})", {"num_attention_heads 4", "num_key_value_heads 3"}},
      {R"({"num_global_key_value_heads": 3})", {"num_attention_heads 4", "num_key_value_heads 3"}},
      {R"({"global_head_dim": 1024})", {"head_dim 1024 is above 512"}},
      {R"({"global_head_dim": 33})", {"head_dim 33 is odd"}},
      {R"({"hidden_activation": "gelu"})", {"hidden_activation \"gelu\" is not supported"}},
      {R"({"attention_bias": true})", {"attention_bias true"}},
      {R"({"use_bidirectional_attention": "all"})", {"use_bidirectional_attention \"all\""}},
      {R"({"final_logit_softcapping": -1})", {"final_logit_softcapping -1"}},
      {R"({"attn_logit_softcapping": 50.0})", {"attn_logit_softcapping 50"}},
      {R"({"enable_moe_block": true})", {"num_experts"}},
      {R"({"enable_moe_block": true, "num_experts": 4, "top_k_experts": 5, "moe_intermediate_size": 8})",
       {"top_k_experts 5 is above num_experts 4"}},
      {R"({"enable_moe_block": true, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 0})",
       {"moe_intermediate_size 0"}},
      {R"({"hidden_size_per_layer_input": -1})", {"hidden_size_per_layer_input -1"}},
      {R"({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300})",
       {"vocab_size_per_layer_input 300 differs from vocab_size 320"}},
      {R"({"num_kv_shared_layers": 6})", {"num_kv_shared_layers 6 leaves none of the 6 layers"}},
      {R"({"num_kv_shared_layers": 18})", {"num_kv_shared_layers 18 leaves none of the 6 layers"}},
      {R"({"num_kv_shared_layers": 4})", {"num_kv_shared_layers 4 makes layer 2 read", "none of the first 2 sees all"}},
      {R"({"num_kv_shared_layers": 2, "per_layer_config": {"5": {"head_dim": 64}}})",
       {"layer 5 has 1 KV heads of 64, but layer 2, whose rows it reads, has 1 of 32"}},
      {R"({"per_layer_config": [1]})", {"per_layer_config [1]"}},
      {R"({"per_layer_config": {"6": {}}})", {"per_layer_config holds", "\"6\"", "6 layers"}},
      {R"({"per_layer_config": {"5": {"head_dim": 0}}})", {"per_layer_config.5.head_dim 0"}},
      {R"({"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.01}}})",
       {"rope_parameters.full_attention.partial_rotary_factor 0.01", "32"}},
      {R"({"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2}}})", {"rope_type \"dynamic\""}},
      {R"({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}})",
       {"rope_parameters.sliding_attention.rope_type \"linear\""}},
      {R"({"model_type": "gemma4_assistant", "architectures": null})", {"gemma4_assistant", "is a draft for Gemma 4"}},
  };
  for (const auto& [changes, parts] : kRefusals) {
    SCOPED_TRACE(changes);
    expect_error(ExitCode::kBadInput, "a/config.json", parts, [&, c = changes] { parse_gemma4(gemma4_with(c)); });
  }
}

using Gemma4Change = std::function<void(GgufFile*)>;

ModelConfig gemma4_gguf_with(const Gemma4Change& change) {
  const InputFile input(tiny_file("gemma4.gguf"));
  GgufFile file = parse_gguf(input);
  change(&file);
  return gguf_config(file, input);
}
Gemma4Change gemma4_number(const std::string& key, uint32_t value) {
  return [=](GgufFile* file) {
    file->metadata["gemma4." + key] = {GgufType::kU32, false, 1, testing_support::raw_bytes(value)};
  };
}
Gemma4Change without_tensor(const std::string& name) {
  return [=](GgufFile* file) { std::erase_if(file->tensors, [&](const GgufTensor& t) { return t.name == name; }); };
}

TEST(Gemma4, GgufKeys) {
  const ModelConfig alike = gemma4_gguf_with(gemma4_number("attention.head_count_kv", 2));
  for (const LayerSpec& layer : alike.layers) EXPECT_EQ(layer.attention().kv_heads, 2);
  EXPECT_TRUE(gemma4_gguf_with(without_tensor("blk.0.attn_v.weight")).layer(0).attention().k_is_v);
  EXPECT_EQ(gemma4_gguf_with([](GgufFile* file) { file->metadata.erase("gemma4.final_logit_softcapping"); }).logit_cap,
            0);
  const std::vector<std::pair<Gemma4Change, std::vector<std::string>>> refusals = {
      {gemma4_number("attention.sliding_window", 0), {"gemma4.attention.sliding_window is 0"}},
      {gemma4_number("attention.value_length", 16), {"gemma4.attention.value_length 16 differs", "32"}},
      {gemma4_number("rope.dimension_count_swa", 8), {"gemma4.rope.dimension_count_swa 8 differs", "16"}},
      {gemma4_number("attention.key_length", 64), {"value_length", "64"}},
      {gemma4_number("attention.head_count_kv", 0), {"gemma4.attention.head_count_kv is 0"}},
      {gemma4_number("block_count", 5), {"holds 6 values, but gemma4.block_count is 5"}},
      {gemma4_number("expert_count", 8), {"gemma4.expert_used_count", "missing"}},
      {gemma4_number("expert_count", 5000), {"gemma4.expert_count", "5000"}},
      {gemma4_number("attention.shared_kv_layers", 18),
       {"gemma4.attention.shared_kv_layers 18 leaves none of the 6 layers"}},
      {gemma4_number("attention.shared_kv_layers", 4),
       {"gemma4.attention.shared_kv_layers 4 makes layer 2 read", "none of the first 2 sees all"}},
      {without_tensor("rope_freqs.weight"), {"has no tensor rope_freqs.weight"}},
      {[](GgufFile* file) {
         for (GgufTensor& tensor : file->tensors)
           if (tensor.name == "rope_freqs.weight") tensor.shape = {8}, tensor.bytes = 32;
       },
       {"rope_freqs.weight holds 8 factors; head_dim 32 needs 16"}},
      {[](GgufFile* file) {  // other values: those of the embedding
         uint64_t begin = 0;
         for (const GgufTensor& tensor : file->tensors)
           if (tensor.name == "token_embd.weight") begin = tensor.begin;
         for (GgufTensor& tensor : file->tensors)
           if (tensor.name == "rope_freqs.weight") tensor.begin = begin;
       },
       {"rope_freqs.weight holds", "1 for the dimensions that turn"}},
  };
  for (const auto& [change, parts] : refusals) {
    SCOPED_TRACE(parts.front());
    expect_error(ExitCode::kBadInput, tiny_file("gemma4.gguf"), parts, [&, c = change] { gemma4_gguf_with(c); });
  }
}

}  // namespace
}  // namespace headrace
