// Gemma 4, its text part: 31B, 12B, 26B-A4B, and the E models, E4B and E2B. As Gemma 3, but norms are plain, layers
// that see all rows have heads of their own, larger and fewer, and their keys' raw values are the values; a layer ends
// with a factor; logits are capped. In the E models a token itself adds to each layer, K and V of all layers are made
// apart, and the last layers make none: they read those of the last layer before them that sees as much. The parts that
// read images and sound are not loaded.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "cache/base.h"
#include "runtime/base/end_ids.h"
#include "runtime/base/json_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/families/gemma.h"
#include "runtime/model/families/llama_like.h"
#include "runtime/model/families/windows.h"
#include "runtime/model/rope_json.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr double kMaxLogitCap = 1e6;

// Of a layer, before it is known what it sees.
LayerSpec gemma4_layer(int64_t heads, int64_t ffn) {
  AttentionSpec attention;
  attention.heads = heads;
  attention.qk_norm = attention.v_norm = true;
  attention.scale = 1.0;
  return {.mixer = attention, .ffn = {ffn, Activation::kGelu}, .output_norms = true, .scaled = true};
}

struct Gemma4Heads {
  int64_t kv_heads, head_dim;
};
void set_heads(const Gemma4Heads& heads, AttentionSpec* attention) {
  attention->kv_heads = heads.kv_heads;
  attention->head_dim = heads.head_dim;
}

// Which layers read the rows of others: the last `shared`, each those of the last layer before them that sees as much.
// `refuse` throws.
template <typename Refuse>
void share_rows(int64_t shared, const Refuse& refuse, std::vector<LayerSpec>* layers) {
  const auto count = static_cast<int64_t>(layers->size()), first = count - shared;
  if (first < 1) refuse(str("leaves none of the ", count, " layers K and V of its own"));
  for (int64_t i = first; i < count; ++i) {
    AttentionSpec& reader = (*layers)[static_cast<size_t>(i)].attention();
    for (int64_t from = first - 1; from >= 0 && reader.makes_rows(); --from) {
      if ((*layers)[static_cast<size_t>(from)].attention().window == reader.window) reader.rows_of = from;
    }
    if (reader.makes_rows())
      refuse(str("makes layer ", i, " read the K and V of an earlier one, but none of the first ", first,
                 reader.window > 0 ? " has a window" : " sees all rows"));
    reader.k_is_v = false;
  }
}

// ---- config.json ----

void refuse_gemma4(const JsonFields& fields) {
  refuse_of_gemma(fields);
  const json* const both = fields.find("use_bidirectional_attention");  // "vision": between the parts of an image
  if (both != nullptr && *both != "vision" && *both != false)
    fields.refuse("use_bidirectional_attention", "is not supported (\"vision\" and null are)");
  if (fields.has("attn_logit_softcapping")) fields.refuse("attn_logit_softcapping", "is not supported (null is)");
}

// Angles of the layers that see all rows: "proportional", or what other families may have.
RopeConfig gemma4_rope(const JsonFields& fields, int64_t max_positions, int64_t head_dim) {
  const json* const all = fields.find("rope_parameters");
  if (all == nullptr || !all->is_object() || !all->contains("full_attention"))
    return parse_rope(fields, max_positions, {.theta = kGemmaTheta});
  const json& own = (*all)["full_attention"];
  if (!own.is_object()) fields.refuse("rope_parameters", "must hold an object for \"full_attention\"");
  const JsonFields full(own, fields.source(), fields.label("rope_parameters.full_attention."));
  if (full.string_or("rope_type", "default") != "proportional")
    return parse_rope(fields, max_positions, {.theta = kGemmaTheta});
  RopeConfig rope;
  rope.theta = full.number_or("rope_theta", 1e-3, kGemmaMaxTheta, kGemmaTheta);
  if (full.number_or("factor", 1e-3, 1e6, 1) != 1)
    full.refuse("factor", "is not supported with \"proportional\" (1 is)");
  const double part = full.number_or("partial_rotary_factor", 0, 1, 1);
  const int64_t pairs = static_cast<int64_t>(part * static_cast<double>(head_dim)) / 2;
  if (pairs < 1) full.refuse("partial_rotary_factor", str("turns no pair of a head of ", head_dim));
  if (2 * pairs < head_dim) rope.turning_dims = 2 * pairs;
  return rope;
}

// per_layer_config: {"5": {"head_dim": 512, "num_key_value_heads": 4}, ...}, which newer files have.
void read_per_layer(const JsonFields& fields, std::vector<LayerSpec>* layers) {
  const json* const all = fields.find("per_layer_config");
  if (all == nullptr) return;
  if (!all->is_object()) fields.refuse("per_layer_config", "must be an object with a layer's number as each key");
  for (const auto& [key, value] : all->items()) {
    size_t layer = layers->size();
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
    if (error != std::errc() || end != key.data() + key.size() || layer >= layers->size() || !value.is_object())
      throw_error(ExitCode::kBadInput, fields.source(),
                  str(fields.label("per_layer_config"), " holds ", shown(value), " for \"", key,
                      "\"; an object for one of ", layers->size(), " layers is expected"));
    const JsonFields own(value, fields.source(), fields.label(("per_layer_config." + key + ".").c_str()));
    AttentionSpec& attention = (*layers)[layer].attention();
    attention.head_dim = own.integer_or("head_dim", 2, kMaxHeadDim, attention.head_dim);
    attention.kv_heads = own.integer_or("num_key_value_heads", 1, kMaxHeads, attention.kv_heads);
  }
}

std::optional<ExpertsSpec> gemma4_experts(const JsonFields& fields) {
  if (!fields.boolean_or("enable_moe_block", false)) return std::nullopt;
  ExpertsSpec experts = read_expert_counts(fields, {.used = "top_k_experts"});
  experts.normalised = experts.beside = true;
  experts.width = fields.integer("moe_intermediate_size", 1, kMaxFfn);
  return experts;
}

void read_gemma4_layers(const JsonFields& fields, ModelConfig* config) {
  const int64_t count = fields.integer("num_hidden_layers", 1, kMaxLayers);
  std::vector<bool> windows = read_windows(fields, count, kGemmaPattern);
  windows.back() = false;  // transformers lets the last layer see all rows, whatever the file says
  const int64_t window = fields.integer_or("sliding_window", 1, kMaxPositions, 512);
  const Gemma4Heads near = {fields.integer("num_key_value_heads", 1, kMaxHeads),
                            fields.integer_or("head_dim", 2, kMaxHeadDim, 256)};
  const bool k_is_v = fields.boolean_or("attention_k_eq_v", false);
  const Gemma4Heads far = {
      k_is_v ? fields.integer_or("num_global_key_value_heads", 1, kMaxHeads, near.kv_heads) : near.kv_heads,
      fields.integer_or("global_head_dim", 2, kMaxHeadDim, 512)};
  LayerSpec layer = gemma4_layer(fields.integer("num_attention_heads", 1, kMaxHeads),
                                 fields.integer("intermediate_size", 1, kMaxFfn));
  layer.ffn.experts = gemma4_experts(fields);
  for (const bool has_window : windows) {
    AttentionSpec& attention = config->layers.emplace_back(layer).attention();
    set_heads(has_window ? near : far, &attention);
    attention.window = has_window ? window : 0;
    attention.local_rope = has_window;
    attention.k_is_v = k_is_v && !has_window;
  }
  read_per_layer(fields, &config->layers);
  const int64_t shared = fields.integer_or("num_kv_shared_layers", 0, kMaxLayers, 0);
  share_rows(
      shared, [&](const std::string& why) { fields.refuse("num_kv_shared_layers", why); }, &config->layers);
  const int64_t token_width = fields.integer_or("hidden_size_per_layer_input", 0, kMaxWidth, 0);
  const bool wide = fields.boolean_or("use_double_wide_mlp", false);
  for (LayerSpec& each : config->layers) {
    each.token_width = token_width;
    if (wide && !each.keeps_rows()) each.ffn.width *= 2;
  }
}

void read_gemma4_text(const JsonFields& fields, ModelConfig* config) {
  refuse_gemma4(fields);
  config->hidden = fields.integer("hidden_size", 1, kMaxWidth);
  config->vocab = fields.integer_or("vocab_size", 1, kMaxVocab, 262144);
  config->max_positions = fields.integer_or("max_position_embeddings", 1, kMaxPositions, 131072);
  config->rms_eps = fields.number_or("rms_norm_eps", 1e-12, 1e-1, 1e-6);
  read_gemma4_layers(fields, config);
  const int64_t token_vocab = fields.integer_or("vocab_size_per_layer_input", 1, kMaxVocab, config->vocab);
  if (config->token_width() > 0 && token_vocab != config->vocab)
    throw_error(ExitCode::kBadInput, fields.source(),
                str(fields.label("vocab_size_per_layer_input"), " ", token_vocab, " differs from ",
                    fields.label("vocab_size"), " ", config->vocab));
  config->rope = gemma4_rope(fields, config->max_positions, config->attention().head_dim);
  config->local_rope = gemma_local_rope(fields);
  config->logit_cap =
      fields.has("final_logit_softcapping") ? fields.number("final_logit_softcapping", 1e-3, kMaxLogitCap) : 0;
  config->scaled_embedding = true;
  config->tied_head = fields.boolean_or("tie_word_embeddings", true);
  append_end_ids(fields, config->vocab, &config->end_ids);
}

void read_gemma4(const JsonFields& whole, ModelConfig* config) {
  read_gemma_config(whole, {"gemma4_text", "gemma4_unified_text"}, read_gemma4_text, config);
}

// Its names of what is beside the dense part are the decoder's, but for their ends.
std::string gemma4_tensor(std::string_view stored) {
  constexpr std::pair<std::string_view, std::string_view> kEnds[] = {
      {".router.proj.weight", ".mlp.gate.weight"},
      {".router.scale", ".mlp.gate.scale"},
      {".router.per_expert_scale", ".mlp.experts.scale"},
      {".experts.gate_up_proj", ".mlp.experts.gate_up_proj"},
      {".experts.down_proj", ".mlp.experts.down_proj"}};
  std::string name = gemma_tensor(stored);
  for (const auto& [end, decoder] : kEnds)
    if (name.ends_with(end)) return name.replace(name.size() - end.size(), end.size(), decoder);
  return name;
}

// ---- GGUF ----

// A number, or one value a layer.
std::vector<int64_t> of_each_layer(const GgufSource& source, const char* name, int64_t layers, int64_t most) {
  const std::string key = source.key(name);
  const auto found = source.file.metadata.find(key);
  if (found == source.file.metadata.end() || !found->second.is_array)
    return std::vector<int64_t>(static_cast<size_t>(layers), source.fields.integer(key, 1, most));
  const std::vector<int32_t> values = source.fields.integers(key);
  if (values.size() != static_cast<size_t>(layers))
    source.fields.refuse(key, str("holds ", values.size(), " values, but ", source.key("block_count"), " is ", layers));
  for (const int32_t value : values)
    if (value < 1 || value > most) source.fields.refuse(key, str("holds ", value, "; 1 to ", most, " is expected"));
  return {values.begin(), values.end()};
}

// Keys and values have one size, of which rope counts all.
int64_t head_dim_of(const GgufSource& source, const std::string& end) {
  const GgufFields& fields = source.fields;
  const int64_t dim = fields.integer(source.key("attention.key_length" + end), 2, kMaxHeadDim);
  for (const std::string& name : {"attention.value_length" + end, "rope.dimension_count" + end}) {
    const int64_t other = fields.integer_or(source.key(name), 1, kMaxHeadDim, dim);
    if (other != dim) fields.refuse(source.key(name), str(other, " differs from the key's ", dim));
  }
  return dim;
}

// rope_freqs.weight divides the frequencies that turn by 1, and the others by so much that they do not.
void read_turning_dims(const GgufSource& source, int64_t head_dim, RopeConfig* rope) {
  constexpr float kStopped = 1e20f;
  const std::vector<float> factors = std::move(rope->frequency_factors);
  rope->frequency_factors.clear();
  if (factors.empty())
    throw_error(ExitCode::kBadInput, source.file.source,
                "has no tensor rope_freqs.weight, which says which dimensions of a head turn",
                "convert the model again with a newer llama.cpp");
  if (factors.size() != static_cast<size_t>(head_dim / 2))
    throw_error(
        ExitCode::kBadInput, source.file.source,
        str("rope_freqs.weight holds ", factors.size(), " factors; head_dim ", head_dim, " needs ", head_dim / 2));
  const auto still = std::find_if(factors.begin(), factors.end(), [](float factor) { return factor != 1.0f; });
  const auto odd = std::find_if(still, factors.end(), [](float factor) { return !(factor >= kStopped); });
  if (odd != factors.end() || still == factors.begin())
    throw_error(ExitCode::kBadInput, source.file.source,
                str("rope_freqs.weight holds ", odd != factors.end() ? *odd : factors.front(), " at ",
                    odd != factors.end() ? odd - factors.begin() : 0,
                    "; 1 for the dimensions that turn, then 1e30 is expected"));
  if (still != factors.end()) rope->turning_dims = 2 * (still - factors.begin());
}

std::optional<ExpertsSpec> gemma4_experts(const GgufSource& source) {
  const GgufFields& fields = source.fields;
  if (fields.integer_or(source.key("expert_count"), 0, kMaxExpertCount, 0) == 0) return std::nullopt;
  ExpertsSpec experts = read_expert_counts(source);
  experts.beside = true;
  experts.width = fields.integer(source.key("expert_feed_forward_length"), 1, kMaxFfn);
  return experts;
}

void read_gemma4_gguf(const GgufSource& source, ModelConfig* config) {
  const GgufFields& fields = source.fields;
  read_sizes(source, config, Mixtures::kAllowed);
  refuse_query_scale(source);
  const int64_t positions = config->max_positions;
  read_rope(source, config);
  config->max_positions = positions;
  const int64_t near = head_dim_of(source, "_swa"), far = head_dim_of(source, "");
  read_turning_dims(source, far, &config->rope);
  config->local_rope.emplace().theta =
      fields.number_or(source.key("rope.freq_base_swa"), 1e-3, kGemmaMaxTheta, kGemmaLocalTheta);
  const int64_t layers = fields.integer(source.key("block_count"), 1, kMaxLayers);
  const std::vector<int64_t> kv_heads = of_each_layer(source, "attention.head_count_kv", layers, kMaxHeads);
  const std::vector<int64_t> ffn = of_each_layer(source, "feed_forward_length", layers, kMaxFfn);
  const std::vector<bool> windows = read_windows(source, layers, kGemmaPattern);
  const int64_t heads = fields.integer(source.key("attention.head_count"), 1, kMaxHeads);
  const int64_t window = fields.integer(source.key("attention.sliding_window"), 1, kMaxPositions);
  const std::optional<ExpertsSpec> experts = gemma4_experts(source);
  const int64_t token_width = fields.integer_or(source.key("embedding_length_per_layer_input"), 0, kMaxWidth, 0);
  for (size_t i = 0; i < windows.size(); ++i) {
    LayerSpec& layer = config->layers.emplace_back(gemma4_layer(heads, ffn[i]));
    layer.ffn.experts = experts;
    layer.token_width = token_width;
    AttentionSpec& attention = layer.attention();
    set_heads({kv_heads[i], windows[i] ? near : far}, &attention);
    attention.window = windows[i] ? window : 0;
    attention.local_rope = windows[i];
    attention.k_is_v = source.file.find(str("blk.", i, ".attn_v.weight")) == nullptr;
  }
  const std::string shared = source.key("attention.shared_kv_layers");
  const int64_t readers = fields.integer_or(shared, 0, kMaxLayers, 0);
  share_rows(
      readers, [&](const std::string& why) { fields.refuse(shared, str(readers, " ", why)); }, &config->layers);
  const std::string cap = source.key("final_logit_softcapping");
  config->logit_cap = fields.has(cap) ? fields.number_or(cap, 1e-3, kMaxLogitCap, 0) : 0;
  config->scaled_embedding = true;
  config->tied_head = source.file.find("output.weight") == nullptr;
}

std::vector<TensorName> gemma4_tensors() {
  std::vector<TensorName> names = {{"layer_output_scale.weight", "layer_scalar", true},
                                   {"ffn_down_exps.scale", "mlp.experts.scale", true},
                                   {"ffn_gate_inp", "mlp.gate"},
                                   {"ffn_gate_up_exps", "mlp.experts.gate_up_proj"},
                                   {"ffn_gate_exps", "mlp.experts.gate_proj"},
                                   {"ffn_up_exps", "mlp.experts.up_proj"},
                                   {"ffn_down_exps", "mlp.experts.down_proj"},
                                   {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
                                   {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
                                   {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
                                   {"inp_gate", "per_layer_input_gate"},
                                   {"proj", "per_layer_projection"},
                                   {"post_norm", "post_per_layer_input_norm"},
                                   {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight", true},
                                   {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight", true},
                                   {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight", true}};
  names.insert(names.end(), gemma_tensors().begin(), gemma_tensors().end());
  return names;
}

}  // namespace

const Family& gemma4_family() {
  static const Family family = {
      .json = {{.name = "gemma4",
                .model_types = {"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"},
                .architectures = {"Gemma4ForConditionalGeneration", "Gemma4ForCausalLM",
                                  "Gemma4UnifiedForConditionalGeneration", "Gemma4UnifiedForCausalLM"},
                .read = read_gemma4,
                .tensor_name = gemma4_tensor}},
      .gguf = {{.architecture = "gemma4", .also = "", .read = read_gemma4_gguf, .tensors = gemma4_tensors()}},
      .refused = {{{"gemma4_assistant", "Gemma4AssistantForCausalLM", "gemma4-assistant"},
                   "is a draft for Gemma 4, which reads the rows of the model itself; it is not supported"}}};
  return family;
}

}  // namespace headrace
