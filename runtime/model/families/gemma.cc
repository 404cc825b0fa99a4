// Gemma 3, its text part: most layers see a window of rows and rotate by angles of their own, four norms a layer, two
// of them of what a branch adds, GELU gates, scaled embeddings. The part that reads images is not loaded. Norm weights
// are stored as w and multiply by 1 + w, in GGUF files as 1 + w.
#include "runtime/model/families/gemma.h"

#include <algorithm>
#include <cmath>

#include "cache/base.h"
#include "runtime/base/end_ids.h"
#include "runtime/base/json_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/families/llama_like.h"
#include "runtime/model/families/windows.h"
#include "runtime/model/rope_json.h"

namespace headrace {
namespace {

using nlohmann::json;

// `windows`: of each layer, whether it has a window of `window` rows.
void set_layers(const std::vector<bool>& windows, int64_t window, const AttentionSpec& attention, int64_t ffn,
                ModelConfig* config) {
  for (const bool has_window : windows) {
    LayerSpec layer{.mixer = attention, .ffn = {ffn, Activation::kGelu}, .output_norms = true};
    layer.attention().window = has_window ? window : 0;
    layer.attention().local_rope = has_window;
    config->layers.push_back(layer);
  }
}

// ---- config.json ----

void refuse_gemma3(const JsonFields& fields) {
  refuse_of_gemma(fields);
  if (fields.boolean_or("use_bidirectional_attention", false))
    fields.refuse("use_bidirectional_attention", "is not supported (false is)");
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (fields.has(cap)) fields.refuse(cap, "is not supported (null is)");
}

}  // namespace

void refuse_of_gemma(const JsonFields& fields) {
  refuse_unsupported(fields);
  if (fields.string_or("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh")
    fields.refuse("hidden_activation", "is not supported (\"gelu_pytorch_tanh\" is)");
  if (fields.boolean_or("attention_bias", false)) fields.refuse("attention_bias", "is not supported (false is)");
}

void read_gemma_config(const JsonFields& whole, const std::vector<std::string>& types, ReadGemmaText read,
                       ModelConfig* config) {
  const json* inner = whole.find("text_config");
  if (inner == nullptr) return read(whole, config);
  if (!inner->is_object()) whole.refuse("text_config", "must be an object: the decoder's config");
  refuse_unsupported(whole);
  const JsonFields fields(*inner, whole.source(), "text_config.");
  if (std::find(types.begin(), types.end(), fields.string_or("model_type", types[0])) == types.end()) {
    std::string supported;
    for (const std::string& type : types) supported += (supported.empty() ? "supported: " : ", ") + type;
    fields.refuse("model_type", "is not supported", supported);
  }
  read(fields, config);
  config->images = true;
  append_end_ids(whole, config->vocab, &config->end_ids);
}

RopeConfig gemma_local_rope(const JsonFields& fields) {
  RopeConfig rope;
  rope.theta = fields.number_or("rope_local_base_freq", 1e-3, kGemmaMaxTheta, kGemmaLocalTheta);
  const json* const all = fields.find("rope_parameters");
  if (all == nullptr || !all->is_object() || !all->contains("sliding_attention")) return rope;
  const json& own = (*all)["sliding_attention"];
  if (!own.is_object()) fields.refuse("rope_parameters", "must hold an object for \"sliding_attention\"");
  const JsonFields local(own, fields.source(), fields.label("rope_parameters.sliding_attention."));
  rope.theta = local.number_or("rope_theta", 1e-3, kGemmaMaxTheta, rope.theta);
  if (local.string_or("rope_type", "default") != "default")
    local.refuse("rope_type", "is not supported for layers with a window (\"default\" is)");
  return rope;
}

namespace {

// Old files leave much out: these are transformers' defaults.
void read_gemma_text(const JsonFields& fields, ModelConfig* config) {
  refuse_gemma3(fields);
  config->hidden = fields.integer_or("hidden_size", 1, kMaxWidth, 2304);
  config->vocab = fields.integer_or("vocab_size", 1, kMaxVocab, 262208);
  config->max_positions = fields.integer_or("max_position_embeddings", 1, kMaxPositions, 131072);
  config->rms_eps = fields.number_or("rms_norm_eps", 1e-12, 1e-1, 1e-6);
  AttentionSpec attention;
  attention.heads = fields.integer_or("num_attention_heads", 1, kMaxHeads, 8);
  attention.kv_heads = fields.integer_or("num_key_value_heads", 1, kMaxHeads, 4);
  attention.head_dim = fields.integer_or("head_dim", 2, kMaxHeadDim, 256);
  attention.qk_norm = true;
  attention.scale = 1 / std::sqrt(fields.number_or("query_pre_attn_scalar", 1e-6, 1e12, 256));
  const int64_t window = fields.integer_or("sliding_window", 1, kMaxPositions, 4096);
  const int64_t ffn = fields.integer_or("intermediate_size", 1, kMaxFfn, 9216);
  const int64_t layers = fields.integer_or("num_hidden_layers", 1, kMaxLayers, 26);
  set_layers(read_windows(fields, layers, kGemmaPattern), window, attention, ffn, config);
  // The positions are those that the model was trained with; no factor multiplies them.
  config->rope = parse_rope(fields, config->max_positions, {.theta = kGemmaTheta});
  config->local_rope = gemma_local_rope(fields);
  config->scaled_embedding = true;
  config->tied_head = fields.boolean_or("tie_word_embeddings", true);
  append_end_ids(fields, config->vocab, &config->end_ids);
}

void read_gemma3(const JsonFields& whole, ModelConfig* config) {
  read_gemma_config(whole, {"gemma3_text"}, read_gemma_text, config);
}

}  // namespace

// The decoder's tensors as transformers writes them since 4.52, and as it did before.
std::string gemma_tensor(std::string_view stored) {
  constexpr std::string_view kNow = "model.language_model.", kBefore = "language_model.";
  for (const std::string_view part :
       {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.",
        "model.vision_embedder.", "model.embed_vision.", "model.audio_tower.", "model.embed_audio."})
    if (stored.starts_with(part)) return "";
  if (stored.starts_with(kNow)) return str("model.", stored.substr(kNow.size()));
  return std::string(stored.starts_with(kBefore) ? stored.substr(kBefore.size()) : stored);
}

// ---- GGUF ----

namespace {

void read_gemma3_gguf(const GgufSource& source, ModelConfig* config) {
  constexpr int64_t kLayersOf27B = 62;  // which alone scales its scores by the mean width of its heads
  const GgufFields& fields = source.fields;
  read_sizes(source, config);
  refuse_query_scale(source);
  const int64_t positions = config->max_positions;
  read_rope(source, config);
  config->max_positions = positions;
  config->local_rope.emplace().theta =
      fields.number_or(source.key("rope.freq_base_swa"), 1e-3, kGemmaMaxTheta, kGemmaLocalTheta);
  AttentionSpec attention = read_heads(source, *config, RopeDims::kAll, Windows::kAllowed);
  attention.qk_norm = true;
  const int64_t layers = fields.integer(source.key("block_count"), 1, kMaxLayers);
  const int64_t of_scale = layers == kLayersOf27B ? config->hidden / attention.heads : attention.head_dim;
  attention.scale = 1 / std::sqrt(static_cast<double>(of_scale));
  const int64_t window = fields.integer(source.key("attention.sliding_window"), 1, kMaxPositions);
  const int64_t ffn = fields.integer(source.key("feed_forward_length"), 1, kMaxFfn);
  set_layers(read_windows(source, layers, kGemmaPattern), window, attention, ffn, config);
  config->scaled_embedding = true;
  config->tied_head = source.file.find("output.weight") == nullptr;
}

}  // namespace

const std::vector<TensorName>& gemma_tensors() {
  static const std::vector<TensorName> names = {{"attn_norm", "input_layernorm"},
                                                {"post_attention_norm", "post_attention_layernorm"},
                                                {"ffn_norm", "pre_feedforward_layernorm"},
                                                {"post_ffw_norm", "post_feedforward_layernorm"},
                                                {"attn_q", "self_attn.q_proj"},
                                                {"attn_k", "self_attn.k_proj"},
                                                {"attn_v", "self_attn.v_proj"},
                                                {"attn_output", "self_attn.o_proj"},
                                                {"attn_q_norm", "self_attn.q_norm"},
                                                {"attn_k_norm", "self_attn.k_norm"},
                                                {"ffn_gate", "mlp.gate_proj"},
                                                {"ffn_up", "mlp.up_proj"},
                                                {"ffn_down", "mlp.down_proj"}};
  return names;
}

const Family& gemma_family() {
  static const Family family = {
      .json = {{.name = "gemma3",
                .model_types = {"gemma3", "gemma3_text"},
                .architectures = {"Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"},
                .read = read_gemma3,
                .tensor_name = gemma_tensor,
                .stored = {{"norm.weight", "", StoredAs::kLessOne}}}},
      .gguf = {{.architecture = "gemma3", .also = "", .read = read_gemma3_gguf, .tensors = gemma_tensors()}},
      .refused = {{{"gemma3n", "gemma3n_text", "Gemma3nForConditionalGeneration", "Gemma3nForCausalLM"},
                   "is Gemma 3n, whose layers have several residual streams and embeddings of their own"}}};
  return family;
}

}  // namespace headrace
