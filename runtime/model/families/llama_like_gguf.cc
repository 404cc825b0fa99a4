#include <algorithm>
#include <cmath>

#include "cache/base.h"
#include "runtime/base/input_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/families/llama_like.h"

namespace headrace {
namespace {

std::vector<float> read_frequency_factors(const GgufSource& source) {
  const GgufTensor* tensor = source.file.find("rope_freqs.weight");
  if (tensor == nullptr) return {};
  if (tensor->shape.size() != 1 || tensor->shape[0] > kMaxHeadDim || std::string_view(tensor->type->name) != "F32")
    throw_error(ExitCode::kBadInput, source.file.source,
                str("rope_freqs.weight must be one row of F32; it is ", tensor->type->name, " of ",
                    tensor->shape.size(), " dimensions"));
  std::vector<float> factors(static_cast<size_t>(tensor->shape[0]));
  source.bytes.read(tensor->begin, factors.data(), tensor->bytes);  // little endian, as all of GGUF
  return factors;
}

void read_yarn(const GgufSource& source, int64_t max_positions, RopeConfig* rope) {
  const GgufFields& fields = source.fields;
  const std::string prefix = source.key("rope.scaling.");
  rope->scaling = RopeScaling::kYarn;
  rope->original_max_positions = fields.integer_or(prefix + "original_context_length", 1, kMaxPositions, max_positions);
  rope->beta_fast = fields.number_or(prefix + "yarn_beta_fast", 1e-6, 1e6, 32);
  rope->beta_slow = fields.number_or(prefix + "yarn_beta_slow", 1e-6, 1e6, 1);
  // llama.cpp's factor multiplies YaRN's own 0.1 ln(factor) + 1, which is divided by that of mscale_all_dim; ours
  // replaces both.
  const double multiplier = fields.number_or(prefix + "attn_factor", 1e-6, 1e6, 1);
  const double all_dim = fields.number_or(prefix + "yarn_log_multiplier", 0, 1e6, 0);
  const double log_factor = 0.1 * std::log(std::max(rope->factor, 1.0));
  if (multiplier != 1 || all_dim != 0)
    rope->attention_factor = multiplier * (log_factor + 1) / (all_dim * log_factor + 1);
}

void read_head_dim(const GgufSource& source, const ModelConfig& config, AttentionSpec* a) {
  const GgufFields& fields = source.fields;
  if (config.hidden % a->heads != 0 && !fields.has(source.key("attention.key_length")))
    fields.refuse(source.key("embedding_length"), str(config.hidden, " is not a multiple of the ", a->heads, " heads"));
  a->head_dim = fields.integer_or(source.key("attention.key_length"), 2, kMaxHeadDim, config.hidden / a->heads);
  if (a->head_dim < 2)
    fields.refuse(source.key("attention.head_count"), str(a->heads, " leaves heads of ", a->head_dim));
  const int64_t value_dim = fields.integer_or(source.key("attention.value_length"), 1, kMaxHeadDim, a->head_dim);
  if (value_dim != a->head_dim)
    fields.refuse(source.key("attention.value_length"), str(value_dim, " differs from the key's ", a->head_dim));
}

}  // namespace

void read_sizes(const GgufSource& source, ModelConfig* config, Mixtures mixtures) {
  const GgufFields& fields = source.fields;
  if (const int64_t experts = fields.integer_or(source.key("expert_count"), 0, INT64_MAX, 0);
      experts > 0 && mixtures == Mixtures::kRefused)
    fields.refuse(source.key("expert_count"), str(experts, ": mixtures of experts are not supported"));
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"})
    if (source.file.find(name) != nullptr)
      throw_error(ExitCode::kBadInput, source.file.source, str("has the tensor ", name, ": LongRoPE is not supported"));
  config->hidden = fields.integer(source.key("embedding_length"), 1, kMaxWidth);
  config->max_positions = fields.integer(source.key("context_length"), 1, kMaxPositions);
  config->rms_eps = fields.number_or(source.key("attention.layer_norm_rms_epsilon"), 1e-12, 1e-1, 1e-5);
  const int64_t tokens =
      static_cast<int64_t>(std::min<uint64_t>(fields.array_size("tokenizer.ggml.tokens"), INT64_MAX));
  config->vocab = fields.integer_or(source.key("vocab_size"), 1, kMaxVocab, tokens);
  if (config->vocab < 1 || config->vocab > kMaxVocab)
    fields.refuse("tokenizer.ggml.tokens", str("holds ", config->vocab, " tokens; 1 to ", kMaxVocab, " are expected"));
}

void refuse_query_scale(const GgufSource& source) {
  for (const char* name : {"attention.temperature_scale", "rope.scaling.yarn_log_multiplier"}) {
    const double scale = source.fields.number_or(source.key(name), -1e6, 1e6, 0);
    if (scale != 0)
      source.fields.refuse(source.key(name), str(scale, ": this scale of queries and keys is not supported"));
  }
}

AttentionSpec read_heads(const GgufSource& source, const ModelConfig& config, RopeDims rotated, Windows windows) {
  const GgufFields& fields = source.fields;
  AttentionSpec a;
  a.heads = fields.integer(source.key("attention.head_count"), 1, kMaxHeads);
  a.kv_heads = fields.integer_or(source.key("attention.head_count_kv"), 1, kMaxHeads, a.heads);
  read_head_dim(source, config, &a);
  const int64_t rotary = fields.integer_or(source.key("rope.dimension_count"), 1, kMaxHeadDim, a.head_dim);
  if (rotated == RopeDims::kPart) a.rope_dims = rotary;
  if (rotated == RopeDims::kAll && rotary != a.head_dim)
    fields.refuse(source.key("rope.dimension_count"),
                  str(rotary, " is not the head_dim ", a.head_dim, "; partial rotary is not supported"));
  const int64_t window =
      windows == Windows::kAllowed ? 0 : fields.integer_or(source.key("attention.sliding_window"), 0, INT64_MAX, 0);
  if (window > 0 && window < config.max_positions)
    fields.refuse(source.key("attention.sliding_window"),
                  str(window, " is below the context_length ", config.max_positions,
                      "; sliding-window attention is not supported"));
  a.qkv_bias = source.file.find("blk.0.attn_q.bias") != nullptr;
  a.output_bias = source.file.find("blk.0.attn_output.bias") != nullptr;
  return a;
}

ExpertsSpec read_expert_counts(const GgufSource& source) {
  const GgufFields& fields = source.fields;
  ExpertsSpec experts{.normalised = true};
  experts.count = fields.integer(source.key("expert_count"), 1, kMaxExpertCount);
  experts.used = fields.integer(source.key("expert_used_count"), 1, kMaxUsedExpertCount);
  if (experts.used > experts.count)
    fields.refuse(source.key("expert_used_count"), str(experts.used, " is above expert_count ", experts.count));
  return experts;
}

// llama.cpp's words for what config.json calls rope_scaling. Llama 3's scaling has no key: it comes as
// rope_freqs.weight.
void read_rope(const GgufSource& source, ModelConfig* config) {
  constexpr double kMaxFactor = 1e6;
  const GgufFields& fields = source.fields;
  const std::string prefix = source.key("rope.scaling.");
  RopeConfig& rope = config->rope;
  rope.theta = fields.number_or(source.key("rope.freq_base"), 1e-3, 1e15, 10000.0);
  const double legacy = fields.number_or(source.key("rope.scale_linear"), 0, kMaxFactor, 0);
  const std::string type = fields.string_or(prefix + "type", legacy > 0 && legacy != 1 ? "linear" : "none");
  rope.factor = fields.number_or(prefix + "factor", 0, kMaxFactor, legacy);
  if (rope.factor == 0) rope.factor = 1;  // 0 is how some files say "none"
  if (type == "none" || type.empty()) {
    rope.factor = 1;
  } else if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "yarn") {
    read_yarn(source, config->max_positions, &rope);
  } else {
    fields.refuse(prefix + "type", str("\"", printable(type), "\" is not a supported rope scaling"),
                  "supported: none, linear, yarn");
  }
  rope.frequency_factors = read_frequency_factors(source);
  config->max_positions = scaled_positions(config->rope, config->max_positions, kMaxPositions);
}

void read_layers(const GgufSource& source, const AttentionSpec& attention, ModelConfig* config) {
  const FfnSpec ffn = {source.fields.integer(source.key("feed_forward_length"), 1, kMaxFfn)};
  read_layers(source, LayerSpec{.mixer = attention, .ffn = ffn}, config);
}

void read_layers(const GgufSource& source, const LayerSpec& layer, ModelConfig* config) {
  config->tied_head = source.file.find("output.weight") == nullptr;
  config->layers = same_layers(source.fields.integer(source.key("block_count"), 1, kMaxLayers), layer);
}

void read_decoder(const GgufSource& source, ModelConfig* config) {
  read_sizes(source, config);
  refuse_query_scale(source);
  read_rope(source, config);
  read_layers(source, read_heads(source, *config), config);
}

const std::vector<TensorName>& llama_like_tensors() {
  static const std::vector<TensorName> names = {
      {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
      {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
      {"attn_v", "self_attn.v_proj"},      {"attn_qkv", "self_attn.qkv_proj"},
      {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"}, {"ffn_gate", "mlp.gate_proj"},
      {"ffn_up", "mlp.up_proj"},           {"ffn_down", "mlp.down_proj"}};
  return names;
}

}  // namespace headrace
