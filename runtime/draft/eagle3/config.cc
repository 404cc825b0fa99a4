#include "runtime/draft/eagle3/config.h"

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/draft/checkpoint.h"
#include "runtime/model/config_check.h"
#include "runtime/model/rope_json.h"

namespace headrace {
namespace {

using nlohmann::json;

using LayerIds = std::array<int64_t, 3>;

// An object within the config; empty if absent.
const json& object_in(const JsonFields& fields, const char* key) {
  static const json kNothing = json::object();
  const json* value = fields.find(key);
  if (value == nullptr) return kNothing;
  if (!value->is_object()) fields.refuse(key, "must be an object");
  return *value;
}

// The config's parts: `layer` is the nested one if it exists, else the whole.
struct Parts {
  const JsonFields whole, layer, eagle;
};

bool flag(const Parts& parts, const char* key) {
  return parts.whole.boolean_or(key, false) || parts.eagle.boolean_or(key, false);
}

void refuse_unsupported(const JsonFields& layer) {
  refuse_unsupported_layer(layer, "head");
  for (const char* key : {"attention_bias", "mlp_bias"})
    if (layer.boolean_or(key, false)) layer.refuse(key, "is not supported (false is)");
}

void parse_sizes(const Parts& parts, const ModelConfig& target, Eagle3Config* config) {
  const JsonFields& layer = parts.layer;
  config->hidden = layer.integer("hidden_size", 1, kMaxWidth);
  config->ffn = layer.integer("intermediate_size", 1, kMaxFfn);
  config->heads = layer.integer("num_attention_heads", 1, kMaxHeads);
  config->kv_heads = layer.integer_or("num_key_value_heads", 1, kMaxHeads, config->heads);
  if (config->heads % config->kv_heads != 0)
    layer.refuse("num_attention_heads", str("is not a multiple of num_key_value_heads ", config->kv_heads));
  config->max_positions = layer.integer_or("max_position_embeddings", 1, kMaxPositions, target.max_positions);
  config->rms_eps = layer.number_or("rms_norm_eps", 1e-12, 1e-1, 1e-6);
  config->rope = parse_rope(layer, config->max_positions);
  config->max_positions = scaled_positions(config->rope, config->max_positions, kMaxPositions);

  config->target_hidden = parts.whole.integer_or("target_hidden_size", 1, kMaxWidth, target.hidden);
  if (config->target_hidden != target.hidden)
    parts.whole.refuse("target_hidden_size", str("does not fit the target, whose hidden size is ", target.hidden));
  config->target_vocab = layer.integer_or("vocab_size", 1, kMaxVocab, target.vocab);
  if (config->target_vocab != target.vocab)
    layer.refuse("vocab_size", str("does not fit the target, whose vocabulary is ", target.vocab),
                 "a draft must be trained for its target, with the same tokenizer");
  const JsonFields& of_vocab = parts.whole.has("draft_vocab_size") ? parts.whole : layer;
  config->own_head = of_vocab.has("draft_vocab_size");
  config->vocab = of_vocab.integer_or("draft_vocab_size", 1, config->target_vocab, config->target_vocab);
}

// One norm of the three states together is not the three norms of EAGLE-3.1.
void refuse_joint_norm(const Parts& parts) {
  for (const JsonFields* fields : {&parts.whole, &parts.eagle}) {
    if (fields->boolean_or("norm_before_fc", false)) {
      fields->refuse("norm_before_fc", "is not supported (false is)", "fc_norm, a norm of each state, is supported");
    }
  }
}

// Rows a query sees; 0: all.
int64_t parse_window(const Parts& parts) {
  const JsonFields& of_window = parts.layer.has("sliding_window") ? parts.layer : parts.whole;
  if (!of_window.boolean_or("use_sliding_window", true)) return 0;
  const json* types = of_window.find("layer_types");
  if (types != nullptr && types->is_array() && !types->empty() && types->front() == "full_attention") return 0;
  return of_window.integer_or("sliding_window", 1, kMaxPositions, 0);
}

// A list of layer ids, if the config has one, and whether it counts outputs of layers.
struct NamedLayers {
  const JsonFields* fields = nullptr;  // null: no list
  const char* key = nullptr;
  bool outputs = false;
};

NamedLayers find_layers(const Parts& parts) {
  const auto listed = [](const JsonFields& fields, const char* key) {
    const json* value = fields.find(key);
    return value != nullptr && !(value->is_array() && value->empty());
  };
  for (const char* key : {"eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"}) {
    if (listed(parts.eagle, key)) return {&parts.eagle, key, true};
    if (listed(parts.whole, key)) return {&parts.whole, key, false};
  }
  return {};
}

LayerIds read_layers(const NamedLayers& named, int64_t layers) {
  const json& list = *named.fields->find(named.key);
  if (!list.is_array() || list.size() != 3) named.fields->refuse(named.key, "must be three layer ids");
  LayerIds ids{};
  for (size_t i = 0; i < 3; ++i) {
    if (!list[i].is_number_integer() || list[i] < 0 || list[i] >= layers)
      named.fields->refuse(named.key, str("does not fit the target, whose layers are 0 to ", layers - 1));
    ids[i] = list[i].get<int64_t>();
  }
  return ids;
}

// Published lists count in two ways: the flat one (vLLM, speculators) names the layers that the states enter, the one
// in eagle_config (SGLang, SpecForge) the layers that output them. Some files mix the two up, but only with the ids
// that everybody's training code uses by default, which identify the convention.
LayerIds parse_feature_layers(const Parts& parts, int64_t layers) {
  const LayerIds entered_by_default = {2, layers / 2, layers - 3};
  const LayerIds outputs_by_default = {1, layers / 2 - 1, layers - 4};
  const NamedLayers named = find_layers(parts);
  const LayerIds listed = named.fields == nullptr ? entered_by_default : read_layers(named, layers);
  const bool outputs = listed == outputs_by_default || (named.outputs && listed != entered_by_default);
  LayerIds ids = listed;
  for (int64_t& id : ids) id += outputs;
  if (0 <= ids[0] && ids[0] < ids[1] && ids[1] < ids[2] && ids[2] < layers) return ids;
  const std::string what = str("does not fit the target: it reads the states entering layers ", ids[0], ", ", ids[1],
                               " and ", ids[2], ", which must ascend and be below its ", layers, " layers");
  if (named.fields != nullptr) named.fields->refuse(named.key, what);
  throw_error(ExitCode::kBadInput, parts.whole.source(), "names no layer ids, and the default " + what);
}

}  // namespace

Eagle3Config parse_eagle3_config(std::string_view text, const std::string& source, const ModelConfig& target) {
  const json object = parse_json_object(text, source);
  const JsonFields whole(object, source);
  const bool nested = whole.has("transformer_layer_config");
  const Parts parts = {whole,
                       JsonFields(nested ? object_in(whole, "transformer_layer_config") : object, source,
                                  nested ? "transformer_layer_config." : ""),
                       JsonFields(object_in(whole, "eagle_config"), source, "eagle_config.")};
  Eagle3Config config;
  refuse_unsupported(parts.layer);
  refuse_joint_norm(parts);
  parse_sizes(parts, target, &config);
  config.sliding_window = parse_window(parts);
  config.feature_layers = parse_feature_layers(parts, target.layer_count());
  config.norm_before_residual = flag(parts, "norm_before_residual");
  config.fc_norm = flag(parts, "fc_norm");
  config.norm_output = flag(parts, "norm_output");
  config.own_embedding = flag(parts, "embed_requires_grad");  // trained beyond the target's
  return config;
}

}  // namespace headrace
