// gpt-oss: a tiny model in a directory, whose experts are stored by columns, and in a GGUF file is one model; what the
// family refuses.
#include <gtest/gtest.h>

#include <algorithm>
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
using testing_support::tiny_file;

TEST(GptOss, SpecOfTheDirectory) {
  const auto model = open_checkpoint(tiny_file("gptoss"));
  const ModelConfig& config = model->config();
  EXPECT_EQ(config.family, "gpt-oss");
  ASSERT_EQ(config.layer_count(), 4);
  for (int64_t i = 0; i < 4; ++i) {
    const AttentionSpec attention = {.heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 24,
                                     .qkv_bias = true,
                                     .output_bias = true,
                                     .window = i % 2 == 0 ? 32 : 0,
                                     .sinks = true};
    EXPECT_EQ(config.layer(i).attention(), attention) << i;
    const ExpertsSpec experts = {.count = 4, .used = 2, .width = 32, .normalised = true, .bias = true};
    EXPECT_EQ(config.layer(i).ffn, (FfnSpec{.activation = Activation::kClampedSilu, .experts = experts})) << i;
  }
  EXPECT_EQ(config.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(config.rope.factor, 8);
  EXPECT_EQ(config.rope.original_max_positions, 128);
  EXPECT_FALSE(config.rope.truncate);
  EXPECT_EQ(config.max_positions, 1024);
  EXPECT_FALSE(config.tied_head);
  EXPECT_EQ(layers_text(config),
            "4 layers of 64, 2 of them with a window of 32, 4 heads and 2 KV heads of 24, 2 of 4 experts with FFN 32");
}

TEST(GptOss, BothFormatsAreOneModel) {
  const auto directory = open_checkpoint(tiny_file("gptoss")), gguf = open_checkpoint(tiny_file("gptoss.gguf"));
  EXPECT_EQ(gguf->config().layers, directory->config().layers);
  EXPECT_EQ(gguf->config().rope.truncate, directory->config().rope.truncate);
  EXPECT_EQ(make_rope_table(gguf->config().rope, 24, 1024).inv_freq,
            make_rope_table(directory->config().rope, 24, 1024).inv_freq);
  testing_support::expect_same_sizes(*gguf, *directory);
  testing_support::expect_same_tensors(*gguf, *directory);
}

// Published files keep the experts in MXFP4, each format in its own order.
TEST(GptOss, BothFormatsHaveTheSameBlocks) {
  const auto directory = open_checkpoint(tiny_file("gptoss-mxfp4")),
             gguf = open_checkpoint(tiny_file("gptoss-mxfp4.gguf"));
  EXPECT_EQ(gguf->config().layers, directory->config().layers);
  testing_support::expect_same_sizes(*gguf, *directory);
  int64_t matrices = 0;
  for (const DecoderTensor& tensor : decoder_tensors(directory->config())) {
    EXPECT_EQ(testing_support::tensor_values(*gguf, tensor), testing_support::tensor_values(*directory, tensor))
        << tensor.name;
    const TensorInfo &a = directory->require(tensor.name, tensor.shape), &b = gguf->require(tensor.name, tensor.shape);
    EXPECT_EQ(a.block_type(), b.block_type()) << tensor.name;
    if (a.block_type() != WeightType::kMXFP4) continue;
    ++matrices;
    EXPECT_EQ(a.stored_bytes, weight_bytes(WeightType::kMXFP4, a.rows(), a.cols()));
    std::vector<char> of_a(a.stored_bytes), of_b(a.stored_bytes),
        tail(a.stored_bytes / static_cast<uint64_t>(a.rows()));
    directory->read_blocks(a, 0, a.rows(), of_a.data());
    gguf->read_blocks(b, 0, b.rows(), of_b.data());
    EXPECT_EQ(of_a, of_b) << tensor.name;
    directory->read_blocks(a, a.rows() - 1, a.rows(), tail.data());
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), of_a.end() - static_cast<ptrdiff_t>(tail.size())));
  }
  EXPECT_EQ(matrices, 3 * 4 * 3);
}

TEST(GptOss, BlocksThatDisagreeAreNamed) {
  const TemporaryFolder folder;
  const std::string file = read_small_file(tiny_file("gptoss-mxfp4") + "/model.safetensors", 1 << 20);
  const json config = json::parse(read_small_file(tiny_file("gptoss-mxfp4") + "/config.json", 1 << 16));
  const auto open_with = [&](const std::string& from, const std::string& to, const json& other) {
    std::string changed = file;
    for (size_t at = changed.find(from); at != std::string::npos; at = changed.find(from, at + 1))
      changed.replace(at, from.size(), to);
    folder.write("model.safetensors", changed);
    folder.write("config.json", other.dump());
    open_checkpoint(folder.path());
  };
  expect_error(ExitCode::kBadInput, folder.path(), {"lacks the tensor", "down_proj_scales", "down_proj_blocks"},
               [&] { open_with("down_proj_scales", "down_proj_scalez", config); });
  expect_error(ExitCode::kBadInput, folder.path(), {"experts.gate_up_proj_blocks", "[4, 64, 1, 32]", "[4, 64, 2, 16]"},
               [&] { open_with("[4,64,2,16]", "[4,64,1,32]", config); });
  expect_error(ExitCode::kBadInput, folder.path(), {"experts.gate_up_proj_scales", "[4, 32, 4]", "[4, 64, 2]"},
               [&] { open_with("[4,64,2]", "[4,32,4]", config); });
  json llama = json::parse(read_small_file(tiny_file("llama31") + "/config.json", 1 << 16));
  llama["quantization_config"] = {{"quant_method", "mxfp4"}};
  expect_error(ExitCode::kBadInput, "a/config.json", {"quantization_config \"mxfp4\" of this family"},
               [&] { parse_config_json(llama.dump(), "a/config.json"); });
}

json gptoss_config() { return json::parse(read_small_file(tiny_file("gptoss") + "/config.json", 1 << 16)); }
json gptoss_with(const std::string& changes) {
  json base = gptoss_config();
  const json patch = json::parse(changes);
  for (const auto& [key, value] : patch.items()) base[key] = value;
  return base;
}
ModelConfig parse_gptoss(const json& config) { return parse_config_json(config.dump(), "a/config.json"); }

// As files were published in 2025, and what transformers takes where a file says nothing.
TEST(GptOss, ConfigsOfOtherYears) {
  json old = gptoss_config();
  old.erase("rope_parameters");
  old["rope_theta"] = 150000;
  old["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
                         {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
  old["max_position_embeddings"] = 131072;
  json bare = gptoss_config();
  for (const char* key : {"rope_parameters", "layer_types", "sliding_window", "head_dim", "swiglu_limit"})
    bare.erase(key);
  bare["max_position_embeddings"] = 131072;
  for (const json& each : {old, bare}) {
    const ModelConfig config = parse_gptoss(each);
    EXPECT_EQ(config.rope.theta, 150000);
    EXPECT_EQ(config.rope.factor, 32);
    EXPECT_EQ(config.rope.original_max_positions, 4096);
    EXPECT_FALSE(config.rope.truncate);
    EXPECT_EQ(config.max_positions, 131072);
  }
  const ModelConfig config = parse_gptoss(bare);
  EXPECT_EQ(config.attention().head_dim, 64);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(config.layer(i).attention().window, i % 2 == 0 ? 128 : 0) << i;
}

TEST(GptOss, ConfigRefusesByKeyAndValues) {
  const std::initializer_list<std::pair<const char*, std::vector<std::string>>> kRefusals = {
      {R"({"sliding_window": 0})", {"sliding_window 0"}},
      {R"({"num_hidden_layers": 5})", {"layer_types holds 4 layers, but num_hidden_layers is 5"}},
      {R"({"num_experts_per_tok": 5})", {"num_experts_per_tok 5 is above num_local_experts 4"}},
      {R"({"num_local_experts": 0})", {"num_local_experts 0"}},
      {R"({"swiglu_limit": 8.0})", {"swiglu_limit 8", "(7 is)"}},
      {R"({"swiglu_alpha": 1.0})", {"swiglu_alpha 1", "(1.702 is)"}},
      {R"({"hidden_act": "gelu"})", {"hidden_act \"gelu\""}},
      {R"({"num_key_value_heads": 3})", {"num_attention_heads 4", "num_key_value_heads 3"}},
      {R"({"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention"]})",
       {"no layer whose attention sees all tokens"}},
  };
  for (const auto& [changes, parts] : kRefusals) {
    SCOPED_TRACE(changes);
    expect_error(ExitCode::kBadInput, "a/config.json", parts, [&, c = changes] { parse_gptoss(gptoss_with(c)); });
  }
}

TEST(GptOss, GgufKeys) {
  const auto with = [](const std::string& key, uint32_t value) {
    const InputFile input(tiny_file("gptoss.gguf"));
    GgufFile file = parse_gguf(input);
    if (!key.empty()) file.metadata[key] = {GgufType::kU32, false, 1, testing_support::raw_bytes(value)};
    return gguf_config(file, input);
  };
  EXPECT_EQ(with("gpt-oss.attention.sliding_window_pattern", 4).layer(1).attention().window, 32);
  EXPECT_EQ(with("gpt-oss.attention.sliding_window_pattern", 4).layer(3).attention().window, 0);
  for (const auto& [key, value, part] : std::vector<std::tuple<std::string, uint32_t, std::string>>{
           {"gpt-oss.attention.sliding_window", 0, "gpt-oss.attention.sliding_window is 0"},
           {"gpt-oss.expert_used_count", 5, "gpt-oss.expert_used_count"},
           {"gpt-oss.expert_count", 0, "gpt-oss.expert_count is 0"}}) {
    expect_error(ExitCode::kBadInput, tiny_file("gptoss.gguf"), {part}, [&, k = key, v = value] { with(k, v); });
  }
}

TEST(GptOss, ShapesThatDisagreeAreNamed) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", read_small_file(tiny_file("gptoss") + "/model.safetensors", 1 << 20));
  for (const auto& [changes, parts] : std::initializer_list<std::pair<const char*, std::vector<std::string>>>{
           {R"({"num_local_experts": 5})", {"mlp.experts", "[4, ", "[5, "}},
           {R"({"intermediate_size": 48})", {"mlp.experts", "32", "48"}},
           {R"({"head_dim": 16})", {"self_attn.q_proj.weight", "[96, 64]", "[64, 64]"}}}) {
    SCOPED_TRACE(changes);
    folder.write("config.json", gptoss_with(changes).dump());
    expect_error(ExitCode::kBadInput, folder.path(), parts, [&] {
      const auto model = open_checkpoint(folder.path());
      for (const DecoderTensor& tensor : decoder_tensors(model->config())) model->require(tensor.name, tensor.shape);
    });
  }
}

}  // namespace
}  // namespace headrace
