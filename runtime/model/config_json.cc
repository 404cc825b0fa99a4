// config.json, in the forms that Hugging Face has published over the years, read as transformers 5 reads them.
#include <algorithm>
#include <array>

#include "cache/base.h"
#include "runtime/model/config.h"
#include "runtime/model/config_check.h"
#include "runtime/model/end_ids.h"
#include "runtime/model/json_file.h"

namespace headrace {
namespace {

using nlohmann::json;

struct Family {
  const char* name;  // model_type
  const char* architecture;
};
constexpr std::array<Family, 4> kFamilies = {{{"llama", "LlamaForCausalLM"},
                                              {"mistral", "MistralForCausalLM"},
                                              {"qwen2", "Qwen2ForCausalLM"},
                                              {"qwen3", "Qwen3ForCausalLM"}}};
const char* const kSupported =
    "supported: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM (model_type llama, mistral, "
    "qwen2, qwen3)";

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
  config->layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  config->hidden = fields.integer("hidden_size", 1, kMaxWidth);
  config->ffn = fields.integer("intermediate_size", 1, kMaxFfn);
  config->vocab = fields.integer("vocab_size", 1, kMaxVocab);
  config->heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  config->max_positions = fields.integer("max_position_embeddings", 1, kMaxPositions);
  // Absent means one to each head in Llama; other families have other defaults, and none of their files leaves it out.
  const bool optional = config->family == "llama" || fields.names("num_key_value_heads");
  config->kv_heads = optional ? fields.integer_or("num_key_value_heads", 1, kMaxHeads, config->heads)
                              : fields.integer("num_key_value_heads", 1, kMaxHeads);
  if (fields.has("head_dim")) {
    config->head_dim = fields.integer("head_dim", 2, kMaxHeadDim);
  } else if (config->family == "qwen3") {
    config->head_dim = 128;
  } else {
    config->head_dim = config->hidden / config->heads;
    if (config->hidden % config->heads != 0)
      fields.refuse("hidden_size",
                    str("is not a multiple of num_attention_heads ", config->heads, ", and there is no head_dim"));
  }
  config->rms_eps = fields.number_or("rms_norm_eps", 1e-12, 1e-1, 1e-6);
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

void parse_attention(const JsonFields& fields, ModelConfig* config) {
  const bool qwen = config->family == "qwen2" || config->family == "qwen3";
  if (config->family == "mistral") refuse_window(fields, config->max_positions, 4096);
  if (qwen && fields.boolean_or("use_sliding_window", false) &&
      fields.integer_or("max_window_layers", 0, INT64_MAX, 28) < config->layers)
    refuse_window(fields, config->max_positions, 4096);
  if (const json* types = fields.find("layer_types")) {
    if (!types->is_array()) fields.refuse("layer_types", "must be a list");
    for (const json& type : *types)
      if (type != "full_attention")
        throw_error(ExitCode::kBadInput, fields.source(),
                    str("layer_types holds ", shown(type), "; only \"full_attention\" is supported"));
  }
  const bool bias = config->family != "mistral" && fields.boolean_or("attention_bias", false);
  config->qkv_bias = config->family == "qwen2" || bias;
  config->output_bias = config->family != "qwen2" && bias;
  config->qk_norm = config->family == "qwen3";
}

// rope_scaling (wins, if it says anything) or rope_parameters, whose one entry may be named after the layer type.
const json* rope_object(const JsonFields& fields, std::string* prefix) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* object = fields.find(key);
    if (object == nullptr || object->empty()) continue;
    if (!object->is_object()) fields.refuse(key, "must be an object");
    *prefix = str(key, ".");
    if (const auto full = object->find("full_attention"); full != object->end()) {
      if (!full->is_object()) fields.refuse(key, "must hold an object for \"full_attention\"");
      *prefix += "full_attention.";
      return &*full;
    }
    return object;
  }
  return nullptr;
}

void parse_yarn(const JsonFields& rope, int64_t max_positions, RopeConfig* out) {
  if (!rope.has("factor"))
    out->factor = static_cast<double>(max_positions) / static_cast<double>(out->original_max_positions);
  // A zero stands for "absent" here, as it does in the reference.
  out->beta_fast = rope.number_or("beta_fast", 0, 1e6, 32);
  out->beta_slow = rope.number_or("beta_slow", 0, 1e6, 1);
  if (out->beta_fast == 0) out->beta_fast = 32;
  if (out->beta_slow == 0) out->beta_slow = 1;
  if (rope.has("attention_factor")) out->attention_factor = rope.number("attention_factor", 1e-6, 1e6);
  out->mscale = rope.number_or("mscale", 0, 1e6, 0);
  out->mscale_all_dim = rope.number_or("mscale_all_dim", 0, 1e6, 0);
  out->truncate = rope.boolean_or("truncate", true);
}

RopeConfig parse_rope(const JsonFields& fields, int64_t max_positions) {
  constexpr double kMaxTheta = 1e15, kMaxFactor = 1e6;
  RopeConfig out;
  out.theta = fields.number_or("rope_theta", 1e-3, kMaxTheta, 10000.0);
  if (fields.number_or("partial_rotary_factor", 0, 1e6, 1) != 1)
    fields.refuse("partial_rotary_factor", "is not supported (1 is)");
  std::string prefix;
  const json* object = rope_object(fields, &prefix);
  if (object == nullptr) return out;
  const JsonFields rope(*object, fields.source(), prefix);
  out.theta = rope.number_or("rope_theta", 1e-3, kMaxTheta, out.theta);
  if (rope.number_or("partial_rotary_factor", 0, 1e6, 1) != 1)
    rope.refuse("partial_rotary_factor", "is not supported (1 is)");
  const char* key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.string_or(key, "default");
  if (type == "default") return out;
  if (type == "linear") out.scaling = RopeScaling::kLinear;
  if (type == "llama3") out.scaling = RopeScaling::kLlama3;
  if (type == "yarn") out.scaling = RopeScaling::kYarn;
  if (out.scaling == RopeScaling::kNone)
    rope.refuse(key, "is not a supported rope scaling", "supported: default, linear, llama3, yarn");
  const char* original = "original_max_position_embeddings";
  out.original_max_positions = rope.integer_or(original, 1, kMaxPositions, max_positions);
  out.original_max_positions = fields.integer_or(original, 1, kMaxPositions, out.original_max_positions);
  if (out.scaling != RopeScaling::kYarn || rope.has("factor")) out.factor = rope.number("factor", 1e-3, kMaxFactor);
  if (out.scaling == RopeScaling::kLlama3) {
    out.low_freq_factor = rope.number("low_freq_factor", 1e-6, kMaxFactor);
    out.high_freq_factor = rope.number("high_freq_factor", 1e-6, kMaxFactor);
  }
  if (out.scaling == RopeScaling::kYarn) parse_yarn(rope, max_positions, &out);
  if (out.scaling == RopeScaling::kLinear) out.original_max_positions = 0;
  return out;
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
  const JsonFields fields(object, source);
  ModelConfig config;
  config.family = parse_family(fields);
  refuse_unsupported(fields);
  parse_sizes(fields, &config);
  parse_attention(fields, &config);
  config.rope = parse_rope(fields, config.max_positions);
  config.tied_head = fields.boolean_or("tie_word_embeddings", false);  // false in all four families
  append_end_ids(fields, config.vocab, &config.end_ids);
  check_config(config, source);
  return config;
}

}  // namespace headrace
