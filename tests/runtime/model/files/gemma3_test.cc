// Gemma 3: a tiny model in a directory and in a GGUF file is one model; what the family refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/base/input_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/decoder_tensors.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/files/open_checkpoint.h"
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

TEST(Gemma3, SpecOfTheDirectory) {
  const auto model = open_checkpoint(tiny_file("gemma3"));
  const ModelConfig& config = model->config();
  EXPECT_EQ(config.family, "gemma3");
  ASSERT_EQ(config.layer_count(), 7);
  for (int64_t i = 0; i < 7; ++i) {
    const bool full = i == 5;
    const AttentionSpec attention = {.heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 32,
                                     .qk_norm = true,
                                     .window = full ? 0 : 64,
                                     .local_rope = !full,
                                     .scale = 1 / std::sqrt(32.0)};
    EXPECT_EQ(config.layer(i).attention(), attention) << i;
    EXPECT_EQ(config.layer(i).ffn, (FfnSpec{64, Activation::kGelu})) << i;
    EXPECT_TRUE(config.layer(i).output_norms) << i;
  }
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(config.rope.factor, 8);
  ASSERT_TRUE(config.local_rope);
  EXPECT_EQ(config.local_rope->theta, 1e4);
  EXPECT_EQ(config.local_rope->scaling, RopeScaling::kNone);
  EXPECT_EQ(config.max_positions, 4096);  // the factor is part of what the model was trained with
  EXPECT_TRUE(config.tied_head && config.scaled_embedding);
  EXPECT_FALSE(config.images);
}

TEST(Gemma3, BothFormatsAreOneModel) {
  for (const std::string name : {"gemma3", "gemma3deep"}) {
    SCOPED_TRACE(name);
    const auto directory = open_checkpoint(tiny_file(name)), gguf = open_checkpoint(tiny_file(name + ".gguf"));
    const ModelConfig &a = directory->config(), &b = gguf->config();
    expect_same_sizes(*gguf, *directory);
    EXPECT_EQ(b.layers, a.layers);
    EXPECT_EQ(b.rope.factor, a.rope.factor);
    EXPECT_EQ(b.local_rope->theta, a.local_rope->theta);
    const auto all = std::count_if(a.layers.begin(), a.layers.end(),
                                   [](const LayerSpec& layer) { return layer.attention().window == 0; });
    const int64_t width = name == "gemma3" ? 32 : 16;
    EXPECT_EQ(a.kv_values(), all * 2 * width);  // layers with a window keep few rows
    expect_same_tensors(*gguf, *directory);
  }
  EXPECT_TRUE(open_checkpoint(tiny_file("gemma3deep"))->config().images);
  EXPECT_EQ(open_checkpoint(tiny_file("gemma3deep.gguf"))->config().attention().scale, 1 / std::sqrt(8.0));
}

json gemma_config() { return json::parse(read_small_file(tiny_file("gemma3") + "/config.json", 1 << 16)); }
ModelConfig parse_gemma(const json& config) { return parse_config_json(config.dump(), "a/config.json"); }
json gemma_with(const std::string& changes) {
  json base = gemma_config();
  const json patch = json::parse(changes);
  for (const auto& [key, value] : patch.items()) base[key] = value;
  return base;
}

// As files were published in 2025: a pattern, rope_scaling, the local base, and defaults for much of the rest.
TEST(Gemma3, OldConfigsLeaveMuchOut) {
  const ModelConfig config = parse_gemma(json::parse(R"({"architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3", "eos_token_id": [1, 106], "vision_config": {}, "text_config": {"model_type": "gemma3_text",
    "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})"));
  EXPECT_EQ(config.vocab, 262208);
  EXPECT_EQ(config.max_positions, 131072);
  EXPECT_EQ(config.attention().heads, 8);
  EXPECT_EQ(config.attention().kv_heads, 4);
  EXPECT_EQ(config.attention().head_dim, 256);
  EXPECT_EQ(config.attention().scale, 1.0 / 16);
  EXPECT_EQ(config.rms_eps, 1e-6);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.rope.factor, 8);
  EXPECT_EQ(config.local_rope->theta, 1e4);
  EXPECT_TRUE(config.tied_head && config.images);
  EXPECT_EQ(config.end_ids, (std::vector<int32_t>{1, 106}));
  for (int64_t i = 0; i < 34; ++i) EXPECT_EQ(config.layer(i).attention().window, i % 6 == 5 ? 0 : 1024) << i;
  json local = gemma_config();
  for (const char* key : {"rope_parameters", "layer_types", "_sliding_window_pattern"}) local.erase(key);
  local["rope_local_base_freq"] = 5000;
  local["sliding_window_pattern"] = 3;
  EXPECT_EQ(parse_gemma(local).local_rope->theta, 5000);
  EXPECT_EQ(parse_gemma(local).layer(2).attention().window, 0);
  EXPECT_EQ(parse_gemma(local).layer(5).attention().window, 0);
  EXPECT_EQ(parse_gemma(local).layer(6).attention().window, 64);
}

TEST(Gemma3, ConfigRefusesByKeyAndValues) {
  const std::initializer_list<std::pair<const char*, std::vector<std::string>>> kRefusals = {
      {R"({"sliding_window": 0})", {"sliding_window 0"}},
      {R"({"sliding_window": -5})", {"sliding_window -5"}},
      {R"({"num_hidden_layers": 8})", {"layer_types holds 7 layers, but num_hidden_layers is 8"}},
      {R"({"layer_types": ["full_attention", "chunked", "", "", "", "", ""]})",
       {"layer_types holds \"chunked\" for layer 1"}},
      {R"({"layer_types": "full"})", {"layer_types \"full\" must be a list"}},
      {R"({"layer_types": null, "_sliding_window_pattern": 0})", {"_sliding_window_pattern 0"}},
      {R"({"num_key_value_heads": 3})", {"num_attention_heads 2", "num_key_value_heads 3"}},
      {R"({"query_pre_attn_scalar": 0})", {"query_pre_attn_scalar 0"}},
      {R"({"head_dim": 1024})", {"head_dim 1024 is above 512"}},
      {R"({"hidden_activation": "gelu"})", {"hidden_activation \"gelu\" is not supported"}},
      {R"({"attention_bias": true})", {"attention_bias true"}},
      {R"({"use_bidirectional_attention": true})", {"use_bidirectional_attention true"}},
      {R"({"final_logit_softcapping": 30.0})", {"final_logit_softcapping 30"}},
      {R"({"attn_logit_softcapping": 50.0})", {"attn_logit_softcapping 50"}},
      {R"({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}})",
       {"rope_parameters.sliding_attention.rope_type \"linear\""}},
      {R"({"model_type": "gemma3n", "architectures": null})", {"gemma3n", "several residual streams"}},
  };
  for (const auto& [changes, parts] : kRefusals) {
    SCOPED_TRACE(changes);
    expect_error(ExitCode::kBadInput, "a/config.json", parts, [&, c = changes] { parse_gemma(gemma_with(c)); });
  }
}

using GemmaChange = std::function<void(GgufFile*)>;

ModelConfig gemma_gguf_with(const GemmaChange& change) {
  const InputFile input(tiny_file("gemma3.gguf"));
  GgufFile file = parse_gguf(input);
  change(&file);
  return gguf_config(file, input);
}
GemmaChange gemma_number(const std::string& key, uint32_t value) {
  return [=](GgufFile* file) { file->metadata[key] = {GgufType::kU32, false, 1, testing_support::raw_bytes(value)}; };
}
GemmaChange gemma_booleans(const std::string& key, const std::string& values) {
  return [=](GgufFile* file) { file->metadata[key] = {GgufType::kBool, true, values.size(), values}; };
}

TEST(Gemma3, GgufKeys) {
  const std::string pattern = "gemma3.attention.sliding_window_pattern";
  const auto windows = [](const ModelConfig& config) {
    std::string text;
    for (const LayerSpec& layer : config.layers) text += layer.attention().window > 0 ? 'w' : 'f';
    return text;
  };
  EXPECT_EQ(windows(gemma_gguf_with([](GgufFile*) {})), "wwwwwfw");
  EXPECT_EQ(windows(gemma_gguf_with(gemma_number(pattern, 3))), "wwfwwfw");
  EXPECT_EQ(windows(gemma_gguf_with(gemma_booleans(pattern, std::string("\1\0\1\1\0\1\0", 7)))), "wfwwfwf");
  // Files from before the key have the family's angles.
  EXPECT_EQ(
      gemma_gguf_with([](GgufFile* file) { file->metadata.erase("gemma3.rope.freq_base_swa"); }).local_rope->theta,
      1e4);
  const std::vector<std::pair<GemmaChange, std::vector<std::string>>> refusals = {
      {gemma_number("gemma3.attention.sliding_window", 0), {"gemma3.attention.sliding_window is 0"}},
      {[](GgufFile* file) { file->metadata.erase("gemma3.attention.sliding_window"); },
       {"gemma3.attention.sliding_window is missing"}},
      {gemma_booleans(pattern, std::string(5, '\1')), {"holds 5 values, but gemma3.block_count is 7"}},
      {gemma_number(pattern, 0), {pattern + " is 0"}},
  };
  for (const auto& [change, parts] : refusals) {
    SCOPED_TRACE(parts.front());
    expect_error(ExitCode::kBadInput, tiny_file("gemma3.gguf"), parts, [&, c = change] { gemma_gguf_with(c); });
  }
}

TEST(Gemma3, ShapesThatDisagreeAreNamed) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", read_small_file(tiny_file("gemma3") + "/model.safetensors", 1 << 20));
  for (const auto& [changes, parts] : std::initializer_list<std::pair<const char*, std::vector<std::string>>>{
           {R"({"head_dim": 16})", {"self_attn.q_proj.weight", "[64, 48]", "[32, 48]"}},
           {R"({"intermediate_size": 96})", {"mlp.gate_proj.weight", "[64, 48]", "[96, 48]"}}}) {
    SCOPED_TRACE(changes);
    folder.write("config.json", gemma_with(changes).dump());
    expect_error(ExitCode::kBadInput, folder.path(), parts, [&] {
      const auto model = open_checkpoint(folder.path());
      for (const DecoderTensor& tensor : decoder_tensors(model->config())) model->require(tensor.name, tensor.shape);
    });
  }
}

}  // namespace
}  // namespace headrace
