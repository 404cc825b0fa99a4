#include "cache/base.h"
#include "runtime/base/end_ids.h"
#include "runtime/base/json_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/families/fp8_json.h"
#include "runtime/model/families/llama_like.h"
#include "runtime/model/rope_json.h"

namespace headrace {
namespace {

using nlohmann::json;

void refuse_layer_types(const JsonFields& fields) {
  const json* types = fields.find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array()) fields.refuse("layer_types", "must be a list");
  for (const json& type : *types)
    if (type != "full_attention")
      throw_error(ExitCode::kBadInput, fields.source(),
                  str("layer_types holds ", shown(type), "; only \"full_attention\" is supported"));
}

}  // namespace

void refuse_unsupported(const JsonFields& fields) {
  fp8_blocks(fields);
  refuse_mxfp4(fields);
  const std::string activation = fields.string_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") fields.refuse("hidden_act", "is not supported (\"silu\" is)");
  if (fields.boolean_or("mlp_bias", false)) fields.refuse("mlp_bias", "is not supported (false is)");
}

void read_sizes(const JsonFields& fields, ModelConfig* config) {
  refuse_unsupported(fields);
  config->hidden = fields.integer("hidden_size", 1, kMaxWidth);
  config->vocab = fields.integer("vocab_size", 1, kMaxVocab);
  config->max_positions = fields.integer("max_position_embeddings", 1, kMaxPositions);
  config->rms_eps = fields.number_or("rms_norm_eps", 1e-12, 1e-1, 1e-6);
}

AttentionSpec read_heads(const JsonFields& fields, const ModelConfig& config, const HeadDefaults& defaults) {
  AttentionSpec a;
  a.heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  const bool optional = defaults.kv_heads || fields.names("num_key_value_heads");
  a.kv_heads = optional ? fields.integer_or("num_key_value_heads", 1, kMaxHeads, a.heads)
                        : fields.integer("num_key_value_heads", 1, kMaxHeads);
  if (fields.has("head_dim")) {
    a.head_dim = fields.integer("head_dim", 2, kMaxHeadDim);
  } else if (defaults.head_dim != 0) {
    a.head_dim = defaults.head_dim;
  } else {
    a.head_dim = config.hidden / a.heads;
    if (config.hidden % a.heads != 0)
      fields.refuse("hidden_size",
                    str("is not a multiple of num_attention_heads ", a.heads, ", and there is no head_dim"));
  }
  return a;
}

void refuse_window(const JsonFields& fields, const ModelConfig& config, int64_t absent) {
  const int64_t window = fields.names("sliding_window") && !fields.has("sliding_window")
                             ? config.max_positions
                             : fields.integer_or("sliding_window", 1, INT64_MAX, absent);
  if (window < config.max_positions)
    throw_error(ExitCode::kBadInput, fields.source(),
                str("sliding_window ", window, " is below max_position_embeddings ", config.max_positions,
                    "; sliding-window attention is not supported"),
                "a model that attends to everything says \"sliding_window\": null");
}

void refuse_dense_layers(const JsonFields& fields) {
  const int64_t step = fields.integer_or("decoder_sparse_step", 1, INT64_MAX, 1);
  if (step != 1) fields.refuse("decoder_sparse_step", "is not supported (1 is: all layers have experts)");
  const json* const dense = fields.find("mlp_only_layers");
  if (dense == nullptr) return;
  if (!dense->is_array()) fields.refuse("mlp_only_layers", "must be a list");
  if (!dense->empty()) fields.refuse("mlp_only_layers", "is not supported ([] is: all layers have experts)");
}

ExpertsSpec read_expert_counts(const JsonFields& fields, const ExpertKeys& keys) {
  const auto read = [&](const char* key, int64_t most, int64_t usual) {
    return usual > 0 ? fields.integer_or(key, 1, most, usual) : fields.integer(key, 1, most);
  };
  ExpertsSpec experts;
  experts.count = read(keys.count, kMaxExpertCount, keys.usual_count);
  experts.used = read(keys.used, kMaxUsedExpertCount, keys.usual_used);
  if (experts.used > experts.count) fields.refuse(keys.used, str("is above ", keys.count, " ", experts.count));
  return experts;
}

void read_layers(const JsonFields& fields, const AttentionSpec& attention, ModelConfig* config, QueryScale scale) {
  read_layers(fields, LayerSpec{.mixer = attention, .ffn = {fields.integer("intermediate_size", 1, kMaxFfn)}}, config,
              scale);
}

void read_layers(const JsonFields& fields, const LayerSpec& layer, ModelConfig* config, QueryScale scale) {
  const int64_t layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  refuse_layer_types(fields);
  config->layers = same_layers(layers, layer);
  config->rope = parse_rope(fields, config->max_positions, {.query_scale = scale == QueryScale::kByPosition});
  config->max_positions = scaled_positions(config->rope, config->max_positions, kMaxPositions);
  config->tied_head = fields.boolean_or("tie_word_embeddings", false);
  append_end_ids(fields, config->vocab, &config->end_ids);
}

}  // namespace headrace
