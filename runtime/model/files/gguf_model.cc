#include "runtime/model/files/gguf_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cache/base.h"
#include "runtime/base/input_file.h"
#include "runtime/model/config_check.h"

namespace headrace {
namespace {

std::string parse_architecture(const GgufFields& fields) {
  const std::string name = fields.string_or("general.architecture", "");
  for (const char* supported : {"llama", "mistral3", "phi3", "qwen2", "qwen3", "seed_oss"})
    if (name == supported) return name;
  fields.refuse("general.architecture", str("\"", printable(name), "\" is not supported"),
                "supported: llama (also Mistral and SmolLM2), mistral3, phi3, qwen2, qwen3, seed_oss");
}

void refuse_unsupported(const GgufFile& file, const GgufFields& fields, const std::string& arch) {
  if (const int64_t parts = fields.integer_or("split.count", 0, 65535, 0); parts > 1)
    fields.refuse("split.count", str(parts, ": a file split into parts is not supported"),
                  "merge the parts into one file");
  if (const int64_t experts = fields.integer_or(arch + ".expert_count", 0, INT64_MAX, 0); experts > 0)
    fields.refuse(arch + ".expert_count", str(experts, ": mixtures of experts are not supported"));
  // Ministral 3 alone has these scales.
  for (const char* key : {".attention.temperature_scale", ".rope.scaling.yarn_log_multiplier"}) {
    const double scale = arch == "mistral3" ? 0 : fields.number_or(arch + key, -1e6, 1e6, 0);
    if (scale != 0) fields.refuse(arch + key, str(scale, ": this scale of queries and keys is not supported"));
  }
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"})
    if (file.find(name) != nullptr)
      throw_error(ExitCode::kBadInput, file.source, str("has the tensor ", name, ": LongRoPE is not supported"));
}

void parse_sizes(const GgufFields& fields, const std::string& arch, ModelConfig* config) {
  config->hidden = fields.integer(arch + ".embedding_length", 1, kMaxWidth);
  config->max_positions = fields.integer(arch + ".context_length", 1, kMaxPositions);
  config->rms_eps = fields.number_or(arch + ".attention.layer_norm_rms_epsilon", 1e-12, 1e-1, 1e-5);
  const int64_t tokens =
      static_cast<int64_t>(std::min<uint64_t>(fields.array_size("tokenizer.ggml.tokens"), INT64_MAX));
  config->vocab = fields.integer_or(arch + ".vocab_size", 1, kMaxVocab, tokens);
  if (config->vocab < 1 || config->vocab > kMaxVocab)
    fields.refuse("tokenizer.ggml.tokens", str("holds ", config->vocab, " tokens; 1 to ", kMaxVocab, " are expected"));
}

AttentionSpec parse_attention(const GgufFile& file, const GgufFields& fields, const std::string& arch,
                              const ModelConfig& config) {
  AttentionSpec a;
  a.heads = fields.integer(arch + ".attention.head_count", 1, kMaxHeads);
  a.kv_heads = fields.integer_or(arch + ".attention.head_count_kv", 1, kMaxHeads, a.heads);
  if (config.hidden % a.heads != 0 && !fields.has(arch + ".attention.key_length"))
    fields.refuse(arch + ".embedding_length", str(config.hidden, " is not a multiple of the ", a.heads, " heads"));
  a.head_dim = fields.integer_or(arch + ".attention.key_length", 2, kMaxHeadDim, config.hidden / a.heads);
  if (a.head_dim < 2) fields.refuse(arch + ".attention.head_count", str(a.heads, " leaves heads of ", a.head_dim));
  const int64_t value_dim = fields.integer_or(arch + ".attention.value_length", 1, kMaxHeadDim, a.head_dim);
  if (value_dim != a.head_dim)
    fields.refuse(arch + ".attention.value_length", str(value_dim, " differs from the key's ", a.head_dim));
  const int64_t rotary = fields.integer_or(arch + ".rope.dimension_count", 1, kMaxHeadDim, a.head_dim);
  if (rotary != a.head_dim)
    fields.refuse(arch + ".rope.dimension_count",
                  str(rotary, " is not the head_dim ", a.head_dim, "; partial rotary is not supported"));
  const int64_t window = fields.integer_or(arch + ".attention.sliding_window", 0, INT64_MAX, 0);
  if (window > 0 && window < config.max_positions)
    fields.refuse(arch + ".attention.sliding_window", str(window, " is below the context_length ", config.max_positions,
                                                          "; sliding-window attention is not supported"));
  a.qkv_bias = arch == "qwen2" || file.find("blk.0.attn_q.bias") != nullptr;
  a.output_bias = file.find("blk.0.attn_output.bias") != nullptr;
  a.qk_norm = arch == "qwen3";
  return a;
}

std::vector<float> parse_frequency_factors(const GgufFile& file, const ByteSource& bytes) {
  const GgufTensor* tensor = file.find("rope_freqs.weight");
  if (tensor == nullptr) return {};
  if (tensor->shape.size() != 1 || tensor->shape[0] > kMaxHeadDim || std::string_view(tensor->type->name) != "F32")
    throw_error(ExitCode::kBadInput, file.source,
                str("rope_freqs.weight must be one row of F32; it is ", tensor->type->name, " of ",
                    tensor->shape.size(), " dimensions"));
  std::vector<float> factors(static_cast<size_t>(tensor->shape[0]));
  bytes.read(tensor->begin, factors.data(), tensor->bytes);  // little endian, as all of GGUF
  return factors;
}

// llama.cpp's words for what config.json calls rope_scaling. Llama 3's scaling has no key: it comes as
// rope_freqs.weight.
void parse_rope(const GgufFields& fields, const std::string& arch, const ModelConfig& config, RopeConfig* rope) {
  constexpr double kMaxFactor = 1e6;
  const std::string prefix = arch + ".rope.scaling.";
  rope->theta = fields.number_or(arch + ".rope.freq_base", 1e-3, 1e15, 10000.0);
  const double legacy = fields.number_or(arch + ".rope.scale_linear", 0, kMaxFactor, 0);
  const std::string type = fields.string_or(prefix + "type", legacy > 0 && legacy != 1 ? "linear" : "none");
  rope->factor = fields.number_or(prefix + "factor", 0, kMaxFactor, legacy);
  if (rope->factor == 0) rope->factor = 1;  // 0 is how some files say "none"
  if (type == "none" || type.empty()) {
    rope->factor = 1;
  } else if (type == "linear") {
    rope->scaling = RopeScaling::kLinear;
  } else if (type == "yarn") {
    rope->scaling = RopeScaling::kYarn;
    rope->original_max_positions =
        fields.integer_or(prefix + "original_context_length", 1, kMaxPositions, config.max_positions);
    rope->beta_fast = fields.number_or(prefix + "yarn_beta_fast", 1e-6, 1e6, 32);
    rope->beta_slow = fields.number_or(prefix + "yarn_beta_slow", 1e-6, 1e6, 1);
    // llama.cpp's factor multiplies YaRN's own 0.1 ln(factor) + 1, which is divided by that of mscale_all_dim; ours
    // replaces both.
    const double multiplier = fields.number_or(prefix + "attn_factor", 1e-6, 1e6, 1);
    const double all_dim = fields.number_or(prefix + "yarn_log_multiplier", 0, 1e6, 0);
    const double log_factor = 0.1 * std::log(std::max(rope->factor, 1.0));
    if (multiplier != 1 || all_dim != 0)
      rope->attention_factor = multiplier * (log_factor + 1) / (all_dim * log_factor + 1);
  } else {
    fields.refuse(prefix + "type", str("\"", printable(type), "\" is not a supported rope scaling"),
                  "supported: none, linear, yarn");
  }
}

// Ministral 3's scale of queries: its step is the context that the model was trained with before YaRN.
void parse_query_scale(const GgufFields& fields, const std::string& arch, const ModelConfig& config, RopeConfig* rope) {
  const std::string scale = arch + ".attention.temperature_scale", length = arch + ".attention.temperature_length";
  if (arch == "mistral3") rope->query_beta = fields.number_or(scale, 0, kMaxQueryBeta, 0);
  if (rope->query_beta == 0) return;
  const std::string original = arch + ".rope.scaling.original_context_length";
  rope->query_step = fields.integer_or(original, 1, kMaxPositions, config.max_positions);
  const int64_t other = fields.integer_or(length, 1, kMaxPositions, rope->query_step);
  if (other != rope->query_step)
    fields.refuse(length, str(other, " differs from ", original, ", ", rope->query_step, "; that is not supported"));
}

int32_t token_id(const GgufFields& fields, const char* name) {
  // Some writers store -1 as an unsigned number; any id out of the vocabulary's range means "none".
  const int64_t id = fields.integer_or(std::string("tokenizer.ggml.") + name, INT32_MIN, UINT32_MAX, -1);
  return id < 0 || id > INT32_MAX ? -1 : static_cast<int32_t>(id);
}

struct NamePair {
  std::string_view gguf, hf;
};
constexpr std::array<NamePair, 13> kLayerNames = {{{"attn_norm", "input_layernorm"},
                                                   {"ffn_norm", "post_attention_layernorm"},
                                                   {"post_attention_norm", "post_attention_layernorm"},  // Seed-OSS
                                                   {"attn_q", "self_attn.q_proj"},
                                                   {"attn_k", "self_attn.k_proj"},
                                                   {"attn_v", "self_attn.v_proj"},
                                                   {"attn_qkv", "self_attn.qkv_proj"},
                                                   {"attn_output", "self_attn.o_proj"},
                                                   {"attn_q_norm", "self_attn.q_norm"},
                                                   {"attn_k_norm", "self_attn.k_norm"},
                                                   {"ffn_gate", "mlp.gate_proj"},
                                                   {"ffn_up", "mlp.up_proj"},
                                                   {"ffn_down", "mlp.down_proj"}}};

}  // namespace

ModelConfig gguf_config(const GgufFile& file, const ByteSource& bytes) {
  const GgufFields fields(file);
  ModelConfig config;
  const std::string arch = parse_architecture(fields);
  config.family = arch;
  refuse_unsupported(file, fields, arch);
  parse_sizes(fields, arch, &config);
  parse_rope(fields, arch, config, &config.rope);
  parse_query_scale(fields, arch, config, &config.rope);
  config.rope.frequency_factors = parse_frequency_factors(file, bytes);
  config.max_positions = scaled_positions(config.rope, config.max_positions, kMaxPositions);
  config.tied_head = file.find("output.weight") == nullptr;
  const int64_t layers = fields.integer(arch + ".block_count", 1, kMaxLayers);
  const LayerSpec layer = {.mixer = parse_attention(file, fields, arch, config),
                           .ffn = {fields.integer(arch + ".feed_forward_length", 1, kMaxFfn)}};
  config.layers = same_layers(layers, layer);
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    const int32_t id = token_id(fields, name);
    if (id >= config.vocab)
      throw_error(ExitCode::kBadInput, file.source,
                  str("tokenizer.ggml.", name, " is ", id, ", not in the vocabulary of ", config.vocab));
    if (id >= 0 && std::find(config.end_ids.begin(), config.end_ids.end(), id) == config.end_ids.end())
      config.end_ids.push_back(id);
  }
  check_config(config, file.source);
  return config;
}

Vocabulary gguf_vocabulary(const GgufFile& file) {
  const GgufFields fields(file);
  Vocabulary out;
  out.source = file.source;
  out.model = fields.string_or("tokenizer.ggml.model", "");
  out.pre = fields.string_or("tokenizer.ggml.pre", "");
  out.tokens = fields.strings("tokenizer.ggml.tokens");
  out.types = fields.integers("tokenizer.ggml.token_type");
  out.merges = fields.strings("tokenizer.ggml.merges");
  out.scores = fields.numbers("tokenizer.ggml.scores");
  if (out.model.empty() || out.tokens.empty())
    fields.refuse(out.model.empty() ? "tokenizer.ggml.model" : "tokenizer.ggml.tokens",
                  "is missing: the file has no tokenizer");
  out.bos = token_id(fields, "bos_token_id");
  out.eos = token_id(fields, "eos_token_id");
  out.eot = token_id(fields, "eot_token_id");
  out.unk = token_id(fields, "unknown_token_id");
  out.pad = token_id(fields, "padding_token_id");
  if (fields.has("tokenizer.ggml.add_bos_token"))
    out.add_bos = fields.boolean_or("tokenizer.ggml.add_bos_token", false);
  if (fields.has("tokenizer.ggml.add_eos_token"))
    out.add_eos = fields.boolean_or("tokenizer.ggml.add_eos_token", false);
  if (fields.has("tokenizer.ggml.add_space_prefix"))
    out.add_space_prefix = fields.boolean_or("tokenizer.ggml.add_space_prefix", false);
  return out;
}

std::string hf_tensor_name(std::string_view name, std::string_view arch) {
  if (name == "token_embd.weight") return "model.embed_tokens.weight";
  if (name == "output_norm.weight") return "model.norm.weight";
  if (name == "output.weight") return "lm_head.weight";
  const size_t dot = name.find('.', 4), last = name.rfind('.');
  if (name.substr(0, 4) != "blk." || dot == std::string_view::npos || last <= dot) return std::string(name);
  const std::string_view layer = name.substr(4, dot - 4), part = name.substr(dot + 1, last - dot - 1);
  const std::string prefix = str("model.layers.", layer, ".");
  if (arch == "phi3" && part == "ffn_up") return str(prefix, "mlp.gate_up_proj", name.substr(last));
  for (const NamePair& pair : kLayerNames)
    if (part == pair.gguf) return str(prefix, pair.hf, name.substr(last));
  return std::string(name);
}

}  // namespace headrace
