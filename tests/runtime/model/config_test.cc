// config.json in its published forms, and what is refused.
#include "runtime/model/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cache/base.h"
#include "runtime/model/config_check.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/rope_overrides.h"

namespace headrace {
namespace {

using nlohmann::json;

json llama() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 512, "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "hidden_act": "silu"})");
}

// The base config with some keys replaced, in the syntax of a JSON merge patch but that null stays null.
json with(json base, const std::string& changes) {
  const json patch = json::parse(changes);
  for (const auto& [key, value] : patch.items()) base[key] = value;
  return base;
}
json without(json base, const char* key) {
  base.erase(key);
  return base;
}
ModelConfig parse(const json& config) { return parse_config_json(config.dump(), "a/config.json"); }

TEST(Config, DefaultsOfLlama) {
  const ModelConfig config = parse(without(llama(), "num_key_value_heads"));
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.layers.front().attention().kv_heads, 4);
  EXPECT_EQ(config.layers.front().attention().head_dim, 16);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_FALSE(config.tied_head || config.layers.front().attention().qkv_bias ||
               config.layers.front().attention().output_bias || config.layers.front().attention().qk_norm);
  EXPECT_TRUE(config.end_ids.empty());
}

TEST(Config, OddShapesAreFine) {  // seven q heads to one kv head, sizes that are no power of two
  const ModelConfig config = parse(with(llama(), R"({"hidden_size": 1001, "num_attention_heads": 7,
      "num_key_value_heads": 1, "head_dim": 26, "intermediate_size": 37, "vocab_size": 99})"));
  EXPECT_EQ(config.layers.front().attention().heads / config.layers.front().attention().kv_heads, 7);
  EXPECT_EQ(config.layers.front().attention().head_dim, 26);
  EXPECT_EQ(config.hidden, 1001);
}

TEST(Config, RopeInItsThreeForms) {
  const char* const kForms[] = {
      R"({"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}})",
      R"({"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1,
          "high_freq_factor": 4, "original_max_position_embeddings": 1024}})",
      R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}})",
      R"({"rope_parameters": {"full_attention": {"rope_type": "llama3", "type": "linear", "rope_theta": 500000.0,
          "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}}})"};
  for (const char* form : kForms) {
    const RopeConfig rope = parse(with(llama(), form)).rope;
    EXPECT_EQ(rope.scaling, RopeScaling::kLlama3) << form;
    EXPECT_EQ(rope.theta, 500000.0) << form;
    EXPECT_EQ(rope.factor, 8.0) << form;
    EXPECT_EQ(rope.high_freq_factor, 4.0) << form;
    EXPECT_EQ(rope.original_max_positions, 1024) << form;
  }
}

TEST(Config, YarnFields) {
  const RopeConfig rope = parse(with(llama(), R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
      "beta_fast": 16, "beta_slow": null, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": false,
      "attention_factor": 1.5}})"))
                              .rope;
  EXPECT_EQ(rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(rope.original_max_positions, 2048);  // absent: max_position_embeddings
  EXPECT_EQ(rope.beta_fast, 16);
  EXPECT_EQ(rope.beta_slow, 1);
  EXPECT_EQ(rope.mscale, 0.7);
  EXPECT_EQ(rope.attention_factor, 1.5);
  EXPECT_FALSE(rope.truncate);
  // Without a factor: the ratio of the two lengths.
  EXPECT_EQ(parse(with(llama(), R"({"rope_scaling": {"rope_type": "yarn", "factor": null,
      "original_max_position_embeddings": 512}})"))
                .rope.factor,
            4.0);
}

// Of llama() with 2,048 positions.
TEST(Config, RopeScalingsExtendTheContext) {
  const auto positions = [](const std::string& scaling) {
    return parse(with(llama(), str(R"({"rope_scaling": )", scaling, "}"))).max_positions;
  };
  EXPECT_EQ(positions(R"({"type": "linear", "factor": 4})"), 8192);
  EXPECT_EQ(positions(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024})"), 4096);
  EXPECT_EQ(positions(R"({"rope_type": "yarn", "factor": 4.0})"), 8192);
  // The number is the extended one already, or the factor is the ratio of the two.
  EXPECT_EQ(positions(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512})"), 2048);
  EXPECT_EQ(positions(R"({"rope_type": "yarn", "original_max_position_embeddings": 256})"), 2048);
  EXPECT_EQ(positions(R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 1024})"),
            2048);
  EXPECT_EQ(positions(R"({"rope_type": "yarn", "factor": 1e6, "original_max_position_embeddings": 100000000})"),
            kMaxPositions);
  // A flag's scaling begins with the positions that the model had before its own.
  const ModelConfig extended = parse(with(llama(), R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})"));
  EXPECT_EQ(with_rope(extended, {.scaling = RopeScaling::kYarn, .factor = 2}).max_positions, 4096);
  EXPECT_EQ(with_rope(extended, {.factor = 8}).max_positions, 16384);
}

TEST(Config, RopeThatSaysNothing) {
  for (const char* form :
       {R"({"rope_scaling": null})", R"({"rope_scaling": {}})", R"({"rope_parameters": {"rope_type": "default"}})",
        R"({"rope_scaling": null, "rope_parameters": {"rope_theta": 10000.0}})"})
    EXPECT_EQ(parse(with(llama(), form)).rope.scaling, RopeScaling::kNone) << form;
  // A rope_scaling that says something wins over rope_parameters.
  EXPECT_EQ(parse(with(llama(), R"({"rope_scaling": {"type": "linear", "factor": 2},
      "rope_parameters": {"rope_type": "default"}})"))
                .rope.factor,
            2.0);
}

TEST(Config, EndIds) {
  EXPECT_EQ(parse(with(llama(), R"({"eos_token_id": 2})")).end_ids, (std::vector<int32_t>{2}));
  EXPECT_EQ(parse(with(llama(), R"({"eos_token_id": [5, 2, 5]})")).end_ids, (std::vector<int32_t>{5, 2}));
  EXPECT_TRUE(parse(with(llama(), R"({"eos_token_id": null})")).end_ids.empty());
}

TEST(Config, Biases) {
  const ModelConfig llama_bias = parse(with(llama(), R"({"attention_bias": true})"));
  EXPECT_TRUE(llama_bias.layers.front().attention().qkv_bias && llama_bias.layers.front().attention().output_bias);
  const ModelConfig qwen2 = parse(with(llama(), R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"})"));
  EXPECT_TRUE(qwen2.layers.front().attention().qkv_bias);
  EXPECT_FALSE(qwen2.layers.front().attention().output_bias || qwen2.layers.front().attention().qk_norm);
  const ModelConfig qwen3 = parse(
      with(llama(), R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": true})"));
  EXPECT_TRUE(qwen3.layers.front().attention().qk_norm && qwen3.tied_head);
  EXPECT_FALSE(qwen3.layers.front().attention().qkv_bias);
  EXPECT_EQ(qwen3.layers.front().attention().head_dim, 128);  // the family's default, not hidden / heads
}

json with_images(const json& text) {
  return {{"architectures", {"Mistral3ForConditionalGeneration"}}, {"model_type", "mistral3"}, {"text_config", text}};
}

TEST(Config, TheDecoderOfAModelThatTakesImages) {
  const json text = with(without(llama(), "architectures"), R"({"model_type": "mistral", "sliding_window": null,
      "tie_word_embeddings": true})");
  const ModelConfig config = parse(with(with_images(text), R"({"eos_token_id": 2, "vision_config": {}})"));
  EXPECT_EQ(config.family, "mistral");
  EXPECT_TRUE(config.images);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.end_ids, std::vector<int32_t>{2});
  EXPECT_FALSE(parse(with(with_images(text), R"({"tie_word_embeddings": false})")).tied_head);
  EXPECT_FALSE(parse(with_images(with(text, R"({"tie_word_embeddings": false})"))).tied_head);
  EXPECT_TRUE(parse(with_images(without(text, "tie_word_embeddings"))).tied_head);  // the family's default
  EXPECT_EQ(parse(with_images(without(text, "model_type"))).family, "mistral");
  EXPECT_FALSE(parse(llama()).images);
  for (const auto& [whole, expected] : std::initializer_list<std::pair<json, const char*>>{
           {without(with_images(text), "text_config"), "text_config is missing"},
           {with(with_images(text), R"({"text_config": [1]})"), "text_config [1] must be an object"},
           {with(with_images(text), R"({"model_type": "llama"})"), "model_type \"llama\" contradicts"},
           {with(with_images(text), R"({"quantization_config": {"quant_method": "fp8"}})"), "\"fp8\""},
           {with_images(with(text, R"({"model_type": "mistral4"})")), "text_config.model_type \"mistral4\""},
           {with_images(with(text, R"({"hidden_size": -1})")), "text_config.hidden_size -1"},
           {with_images(with(text, R"({"sliding_window": 512})")), "sliding_window 512"},
           {with_images(with(text, R"({"quantization_config": {"quant_method": "awq"}})")), "awq"}}) {
    try {
      parse(whole);
      ADD_FAILURE() << "accepted " << whole;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

TEST(Config, Ministral3) {
  const json text = with(without(llama(), "architectures"), R"({"model_type": "ministral3", "rope_parameters":
      {"rope_type": "yarn", "type": "yarn", "rope_theta": 1e6, "factor": 16, "original_max_position_embeddings": 128,
       "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1}})");
  const json alone = with(text, R"({"architectures": ["Ministral3ForCausalLM"]})");
  for (const json& whole : {with_images(text), alone}) {
    const ModelConfig config = parse(whole);
    EXPECT_EQ(config.family, "ministral3");
    EXPECT_EQ(config.layers.front().attention().head_dim, 128);  // the family's default
    EXPECT_EQ(config.rope.scaling, RopeScaling::kYarn);
    EXPECT_EQ(config.rope.query_beta, 0.1);
    EXPECT_EQ(config.rope.query_step, 128);
    EXPECT_EQ(make_rope_table(config.rope, config.rope_dims(), config.max_positions).scale, 1.0f);
  }
  EXPECT_EQ(parse(with(alone, R"({"rope_parameters": {"rope_theta": 1e6}})")).rope.query_beta, 0.0);
  for (const auto& [changes, expected] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"sliding_window": 128})", "sliding_window 128"},
           {R"({"rope_parameters": {"llama_4_scaling_beta": 0.1}})",
            "rope_parameters.original_max_position_embeddings is missing"},
           {R"({"rope_parameters": {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 0}})",
            "rope_parameters.original_max_position_embeddings 0"},
           {R"({"rope_parameters": {"llama_4_scaling_beta": -0.1}})", "rope_parameters.llama_4_scaling_beta -0.1"}}) {
    try {
      parse(with(alone, changes));
      ADD_FAILURE() << "accepted " << changes;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

TEST(Config, SeedOss) {
  const json seed = with(llama(), R"({"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss",
      "attention_bias": true, "attention_out_bias": false})");
  const ModelConfig config = parse(seed);
  EXPECT_EQ(config.family, "seed_oss");
  EXPECT_EQ(config.layers.front().attention().head_dim, 128);  // the family's default
  EXPECT_TRUE(config.layers.front().attention().qkv_bias);
  EXPECT_FALSE(config.layers.front().attention().output_bias || config.layers.front().attention().qk_norm ||
               config.tied_head);
  EXPECT_TRUE(parse(without(seed, "attention_bias")).layers.front().attention().qkv_bias);
  EXPECT_FALSE(parse(with(seed, R"({"attention_bias": false})")).layers.front().attention().qkv_bias);
  EXPECT_TRUE(parse(with(seed, R"({"attention_out_bias": true})")).layers.front().attention().output_bias);
  EXPECT_THROW(parse(with(seed, R"({"attention_out_bias": "no"})")), Error);
}

TEST(Config, Phi3) {
  const json phi = with(llama(), R"({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
      "original_max_position_embeddings": 2048, "partial_rotary_factor": 1.0, "rope_scaling": null})");
  const ModelConfig config = parse(with(phi, R"({"sliding_window": null})"));
  EXPECT_EQ(config.family, "phi3");
  EXPECT_EQ(config.layers.front().attention().head_dim, 16);
  EXPECT_FALSE(config.tied_head || config.layers.front().attention().qkv_bias ||
               config.layers.front().attention().output_bias || config.layers.front().attention().qk_norm);
  EXPECT_EQ(parse(without(phi, "num_key_value_heads")).layers.front().attention().kv_heads, 4);
  EXPECT_NO_THROW(parse(with(phi, R"({"sliding_window": 2048})")));
  for (const auto& [changes, expected] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"sliding_window": 2047})", "sliding_window 2047"},
           {R"({"partial_rotary_factor": 0.75})", "partial_rotary_factor 0.75"},
           {R"({"rope_scaling": {"type": "su", "long_factor": [1], "short_factor": [1]}})", "rope_scaling.long_factor"},
           {R"({"rope_scaling": {"type": "yarn", "factor": 4, "short_factor": [1]}})", "rope_scaling.short_factor"}}) {
    try {
      parse(with(phi, changes));
      ADD_FAILURE() << "accepted " << changes;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

TEST(Config, SlidingWindows) {
  const json mistral = with(llama(), R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral"})");
  for (const char* fine : {R"({"sliding_window": null})", R"({"sliding_window": 2048})", R"({"sliding_window": 4096})"})
    EXPECT_EQ(parse(with(mistral, fine)).family, "mistral") << fine;
  EXPECT_EQ(parse(mistral).family, "mistral");  // absent means 4096, which is beyond the 2048 positions
  const json qwen = with(llama(), R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
      "sliding_window": 512, "max_window_layers": 1})");
  EXPECT_EQ(parse(with(qwen, R"({"use_sliding_window": false})")).family, "qwen2");
  EXPECT_EQ(parse(with(qwen, R"({"use_sliding_window": true, "max_window_layers": 2})")).family, "qwen2");
  EXPECT_THROW(parse(with(qwen, R"({"use_sliding_window": true})")), Error);
}

struct Refusal {
  const char* changes;
  const char* expected;  // what the message must hold beside the file's name
};

TEST(Config, RefusesByNameAndValue) {
  const Refusal kRefusals[] = {
      {R"({"architectures": ["GPT2LMHeadModel"]})", "GPT2LMHeadModel"},
      {R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"})", "MixtralForCausalLM"},
      {R"({"architectures": "LlamaForCausalLM"})", "architectures \"LlamaForCausalLM\" must be a list"},
      {R"({"architectures": []})", "architectures"},
      {R"({"architectures": null, "model_type": null})", "neither architectures nor model_type"},
      {R"({"model_type": "gemma2"})", "gemma2"},
      {R"({"model_type": "qwen2"})", "qwen2"},
      {R"({"hidden_act": "gelu"})", "hidden_act \"gelu\""},
      {R"({"mlp_bias": true})", "mlp_bias true"},
      {R"({"quantization_config": {"quant_method": "gptq"}})", "gptq"},
      {R"({"quantization_config": 8})", "8"},
      {R"({"hidden_size": 0})", "hidden_size 0"},
      {R"({"hidden_size": -64})", "hidden_size -64"},
      {R"({"hidden_size": 63})", "hidden_size 63"},
      {R"({"hidden_size": null})", "hidden_size is missing"},
      {R"({"hidden_size": "64"})", "hidden_size \"64\""},
      {R"({"hidden_size": 64.5})", "hidden_size 64.5"},
      {R"({"hidden_size": 9223372036854775808})", "hidden_size 9223372036854775808"},
      {R"({"hidden_size": 1e300})", "hidden_size 1e+300"},
      {R"({"num_hidden_layers": 1000000000})", "num_hidden_layers 1000000000"},
      {R"({"num_hidden_layers": [2]})", "num_hidden_layers [2]"},
      {R"({"intermediate_size": 0})", "intermediate_size 0"},
      {R"({"vocab_size": 99999999999})", "vocab_size 99999999999"},
      {R"({"num_attention_heads": 0})", "num_attention_heads 0"},
      {R"({"num_key_value_heads": 0})", "num_key_value_heads 0"},
      {R"({"num_key_value_heads": 3})", "num_key_value_heads 3"},
      {R"({"num_key_value_heads": 8})", "num_key_value_heads 8"},
      {R"({"head_dim": 15})", "head_dim 15 is odd"},
      {R"({"head_dim": 0})", "head_dim 0"},
      {R"({"head_dim": 514})", "head_dim 514 is above 512"},
      {R"({"num_attention_heads": 65536, "num_key_value_heads": 1, "head_dim": 65536})", "65536"},
      {R"({"max_position_embeddings": 0})", "max_position_embeddings 0"},
      {R"({"rms_norm_eps": -1})", "rms_norm_eps -1"},
      {R"({"rms_norm_eps": "small"})", "rms_norm_eps \"small\""},
      {R"({"rope_theta": 0})", "rope_theta 0"},
      {R"({"rope_theta": -10000})", "rope_theta -10000"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor 0.5"},
      {R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2}})", "rope_scaling.rope_type \"dynamic\""},
      {R"({"rope_scaling": {"type": "longrope"}})", "rope_scaling.type \"longrope\""},
      {R"({"rope_scaling": {"type": 3}})", "rope_scaling.type 3"},
      {R"({"rope_scaling": [1]})", "rope_scaling [1]"},
      {R"({"rope_parameters": {"rope_type": "yarn", "factor": 16, "llama_4_scaling_beta": 0.1}})",
       "rope_parameters.llama_4_scaling_beta 0.1"},
      {R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.factor is missing"},
      {R"({"rope_scaling": {"type": "linear", "factor": 0}})", "rope_scaling.factor 0"},
      {R"({"rope_scaling": {"type": "linear", "factor": "2"}})", "rope_scaling.factor \"2\""},
      {R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})",
       "high_freq_factor 4"},
      {R"({"rope_scaling": {"type": "llama3", "factor": 8}})", "rope_scaling.low_freq_factor is missing"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 2}})", "beta_fast 1"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 4}, "rope_theta": 1})", "theta 1"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 4, "truncate": "no"}})", "rope_scaling.truncate \"no\""},
      {R"({"rope_parameters": {"full_attention": 5}})", "rope_parameters"},
      {R"({"layer_types": ["full_attention", "sliding_attention"]})", "sliding_attention"},
      {R"({"layer_types": "full"})", "layer_types \"full\""},
      {R"({"attention_bias": "yes"})", "attention_bias \"yes\""},
      {R"({"tie_word_embeddings": 1})", "tie_word_embeddings 1"},
      {R"({"eos_token_id": 512})", "eos_token_id 512"},
      {R"({"eos_token_id": -1})", "eos_token_id -1"},
      {R"({"eos_token_id": [2, "x"]})", "\"x\""},
      {R"({"eos_token_id": 18446744073709551615})", "eos_token_id 18446744073709551615"},
      {R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 1024})",
       "sliding_window 1024"},
      {R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 0})",
       "sliding_window 0"},
  };
  for (const Refusal& refusal : kRefusals) {
    try {
      parse(with(llama(), refusal.changes));
      ADD_FAILURE() << "accepted " << refusal.changes;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), ExitCode::kBadInput) << refusal.changes;
      EXPECT_NE(text.find("a/config.json"), std::string::npos) << text;
      EXPECT_NE(text.find(refusal.expected), std::string::npos) << text << "\n  for " << refusal.changes;
    }
  }
}

}  // namespace
}  // namespace headrace
