// Reads config.json as transformers 5 does, in every form that Hugging Face has published.
#include <algorithm>
#include <array>

#include "cache/base.h"
#include "runtime/base/end_ids.h"
#include "runtime/base/json_file.h"
#include "runtime/model/config.h"
#include "runtime/model/config_check.h"
#include "runtime/model/rope_json.h"

namespace headrace {
namespace {

using nlohmann::json;

struct Family {
  const char* name;  // model_type
  const char* architecture;
};
constexpr const char* kWithImages = "mistral3";  // the decoder's config is in text_config
constexpr std::array<Family, 8> kFamilies = {{{"llama", "LlamaForCausalLM"},
                                              {"ministral3", "Ministral3ForCausalLM"},
                                              {"mistral", "MistralForCausalLM"},
                                              {kWithImages, "Mistral3ForConditionalGeneration"},
                                              {"phi3", "Phi3ForCausalLM"},
                                              {"qwen2", "Qwen2ForCausalLM"},
                                              {"qwen3", "Qwen3ForCausalLM"},
                                              {"seed_oss", "SeedOssForCausalLM"}}};
const char* const kSupported =
    "supported: LlamaForCausalLM, Ministral3ForCausalLM, MistralForCausalLM, Mistral3ForConditionalGeneration, "
    "Phi3ForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, SeedOssForCausalLM (model_type llama, ministral3, mistral, "
    "mistral3, phi3, qwen2, qwen3, seed_oss)";

std::string parse_family(const JsonFields& fields) {
  std::string by_architecture, by_type;
  if (const json* list = fields.find("architectures")) {
    if (!list->is_array() || list->empty() || !list->front().is_string())
      fields.refuse("architectures", "must be a list of names", kSupported);
    for (const Family& family : kFamilies)
      if (list->front() == family.architecture) by_architecture = family.name;
    if (by_architecture.empty()) fields.refuse("architectures", "is not supported", kSupported);
  }
  const std::string type = fields.string_or("model_type", "");
  for (const Family& family : kFamilies)
    if (type == family.name) by_type = type;
  if (!type.empty() && by_type.empty()) fields.refuse("model_type", "is not supported", kSupported);
  if (by_type.empty() && by_architecture.empty())
    throw_error(ExitCode::kBadInput, fields.source(), "has neither architectures nor model_type", kSupported);
  if (!by_type.empty() && !by_architecture.empty() && by_type != by_architecture)
    fields.refuse("model_type", str("contradicts architectures ", shown(*fields.find("architectures"))));
  return by_type.empty() ? by_architecture : by_type;
}

void parse_sizes(const JsonFields& fields, ModelConfig* config) {
  config->hidden = fields.integer("hidden_size", 1, kMaxWidth);
  config->vocab = fields.integer("vocab_size", 1, kMaxVocab);
  config->max_positions = fields.integer("max_position_embeddings", 1, kMaxPositions);
  config->rms_eps = fields.number_or("rms_norm_eps", 1e-12, 1e-1, 1e-6);
}

AttentionSpec parse_heads(const JsonFields& fields, const ModelConfig& config) {
  AttentionSpec a;
  a.heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  // In Llama and Phi-3 the default is one per head. Other families have other defaults, but their files always have the
  // field.
  const bool per_head = config.family == "llama" || config.family == "phi3";
  const bool optional = per_head || fields.names("num_key_value_heads");
  a.kv_heads = optional ? fields.integer_or("num_key_value_heads", 1, kMaxHeads, a.heads)
                        : fields.integer("num_key_value_heads", 1, kMaxHeads);
  if (fields.has("head_dim")) {
    a.head_dim = fields.integer("head_dim", 2, kMaxHeadDim);
  } else if (config.family == "qwen3" || config.family == "seed_oss" || config.family == "ministral3") {
    a.head_dim = 128;
  } else {
    a.head_dim = config.hidden / a.heads;
    if (config.hidden % a.heads != 0)
      fields.refuse("hidden_size",
                    str("is not a multiple of num_attention_heads ", a.heads, ", and there is no head_dim"));
  }
  return a;
}

void refuse_window(const JsonFields& fields, int64_t max_positions, int64_t fallback) {
  const int64_t window = fields.names("sliding_window") && !fields.has("sliding_window")
                             ? max_positions
                             : fields.integer_or("sliding_window", 1, INT64_MAX, fallback);
  if (window < max_positions)
    throw_error(ExitCode::kBadInput, fields.source(),
                str("sliding_window ", window, " is below max_position_embeddings ", max_positions,
                    "; sliding-window attention is not supported"),
                "a model that attends to everything says \"sliding_window\": null");
}

void refuse_windows(const JsonFields& fields, const ModelConfig& config, int64_t layers) {
  const bool qwen = config.family == "qwen2" || config.family == "qwen3";
  if (config.family == "mistral") refuse_window(fields, config.max_positions, 4096);
  if (config.family == "phi3" || config.family == "ministral3")
    refuse_window(fields, config.max_positions, config.max_positions);
  if (qwen && fields.boolean_or("use_sliding_window", false) &&
      fields.integer_or("max_window_layers", 0, INT64_MAX, 28) < layers)
    refuse_window(fields, config.max_positions, 4096);
  if (const json* types = fields.find("layer_types")) {
    if (!types->is_array()) fields.refuse("layer_types", "must be a list");
    for (const json& type : *types)
      if (type != "full_attention")
        throw_error(ExitCode::kBadInput, fields.source(),
                    str("layer_types holds ", shown(type), "; only \"full_attention\" is supported"));
  }
}

LayerSpec parse_layer(const JsonFields& fields, const ModelConfig& config) {
  AttentionSpec a = parse_heads(fields, config);
  const bool seed = config.family == "seed_oss", qwen2 = config.family == "qwen2";
  const bool mistral = config.family == "mistral" || config.family == "ministral3";
  const bool bias = !mistral && fields.boolean_or("attention_bias", seed);
  a.qkv_bias = qwen2 || bias;
  a.output_bias = seed ? fields.boolean_or("attention_out_bias", false) : !qwen2 && bias;
  a.qk_norm = config.family == "qwen3";
  return {.mixer = a, .ffn = {fields.integer("intermediate_size", 1, kMaxFfn)}};
}

void refuse_unsupported(const JsonFields& fields) {
  if (const json* quantised = fields.find("quantization_config")) {
    const auto method = quantised->find("quant_method");
    const std::string name = quantised->is_object() && method != quantised->end() ? shown(*method) : shown(*quantised);
    throw_error(ExitCode::kBadInput, fields.source(), str("quantization_config ", name, " is not supported"),
                "give the bf16, f16 or f32 directory of this model, or a GGUF file");
  }
  const std::string activation = fields.string_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") fields.refuse("hidden_act", "is not supported (\"silu\" is)");
  if (fields.boolean_or("mlp_bias", false)) fields.refuse("mlp_bias", "is not supported (false is)");
}

void parse_decoder(const JsonFields& fields, ModelConfig* config) {
  refuse_unsupported(fields);
  parse_sizes(fields, config);
  const int64_t layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  refuse_windows(fields, *config, layers);
  config->layers = same_layers(layers, parse_layer(fields, *config));
  config->rope = parse_rope(fields, config->max_positions, config->family == "ministral3");
  config->max_positions = scaled_positions(config->rope, config->max_positions, kMaxPositions);
  config->tied_head = fields.boolean_or("tie_word_embeddings", false);  // false in all families
  append_end_ids(fields, config->vocab, &config->end_ids);
}

}  // namespace

void append_end_ids(const JsonFields& fields, int64_t vocab, std::vector<int32_t>* out) {
  const json* value = fields.find("eos_token_id");
  if (value == nullptr) return;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    if (!id.is_number_integer() || id.is_number_unsigned() != (id >= 0) || id < 0 || id >= vocab)
      throw_error(ExitCode::kBadInput, fields.source(),
                  str("eos_token_id ", shown(id), " must be a whole number from 0 to ", vocab - 1));
    const int32_t token = id.get<int32_t>();
    if (std::find(out->begin(), out->end(), token) == out->end()) out->push_back(token);
  }
}

ModelConfig parse_config_json(std::string_view text, const std::string& source) {
  const json object = parse_json_object(text, source);
  const JsonFields whole(object, source);
  ModelConfig config;
  config.family = parse_family(whole);
  if (config.family != kWithImages) {
    parse_decoder(whole, &config);
  } else {
    refuse_unsupported(whole);
    const json* inner = whole.find("text_config");
    if (inner == nullptr || !inner->is_object()) whole.refuse("text_config", "must be an object: the decoder's config");
    const JsonFields fields(*inner, source, "text_config.");
    config.images = true;
    config.family = fields.string_or("model_type", "mistral");
    if (config.family != "mistral" && config.family != "ministral3")
      fields.refuse("model_type", "is not supported", "supported: mistral, ministral3");
    parse_decoder(fields, &config);
    config.tied_head = whole.boolean_or("tie_word_embeddings", fields.boolean_or("tie_word_embeddings", true));
    append_end_ids(whole, config.vocab, &config.end_ids);
  }
  check_config(config, source);
  return config;
}

}  // namespace headrace
