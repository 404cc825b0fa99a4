#include "runtime/draft/longspec/checkpoint.h"

#include <string_view>
#include <utility>

#include "runtime/model/config_check.h"
#include "runtime/model/files/hub_cache.h"

namespace headrace {
namespace {

// The layer's tensors and their shapes.
std::vector<std::pair<std::string, std::vector<int64_t>>> expected_tensors(const LongSpecConfig& c) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  return {
      {"input_layernorm.weight", {c.hidden}},
      {"post_self_attention_layernorm.weight", {c.hidden}},
      {"post_cross_attention_layernorm.weight", {c.hidden}},
      {"self_attn.q_proj.weight", {q, c.hidden}},
      {"self_attn.q_proj.bias", {q}},
      {"self_attn.k_proj.weight", {kv, c.hidden}},
      {"self_attn.k_proj.bias", {kv}},
      {"self_attn.v_proj.weight", {kv, c.hidden}},
      {"self_attn.v_proj.bias", {kv}},
      {"self_attn.o_proj.weight", {c.hidden, q}},
      {"cross_attn.q_proj.weight", {q, c.hidden}},
      {"cross_attn.q_proj.bias", {q}},
      {"cross_attn.o_proj.weight", {c.hidden, q}},
      {"mlp.gate_proj.weight", {c.ffn, c.hidden}},
      {"mlp.up_proj.weight", {c.ffn, c.hidden}},
      {"mlp.down_proj.weight", {c.hidden, c.ffn}},
  };
}
// The keys and values of the cross-attention are the target's: the layer's own projections for them are never used.
constexpr const char* kIgnoredTensors[] = {
    "cross_attn.k_proj.weight", "cross_attn.k_proj.bias",        "cross_attn.v_proj.weight",
    "cross_attn.v_proj.bias",   "self_attn.rotary_emb.inv_freq", "cross_attn.rotary_emb.inv_freq",
    "rotary_emb.inv_freq",
};
constexpr std::string_view kPrefixes[] = {"draft_model.", "glide."};

// The prefix of the layer's tensor names in this file; empty for flat names.
std::string_view prefix_of(const TensorFiles& files) {
  for (const std::string_view prefix : kPrefixes) {
    for (const TensorInfo& info : files.tensors()) {
      if (info.name.starts_with(prefix)) return prefix;
    }
  }
  return {};
}

LongSpecConfig parse(std::string_view text, const std::string& source, const ModelConfig& target) {
  const nlohmann::json object = parse_json_object(text, source);
  const JsonFields fields(object, source);
  refuse_unsupported_layer(fields, "draft");
  LongSpecConfig config;
  const auto as_target = [&](const char* key, int64_t value, int64_t wanted, const char* what) {
    if (value != wanted)
      fields.refuse(key, str("does not fit the target, whose ", what, " is ", wanted),
                    "a LongSpec draft reads its target's KV cache and must be trained for it");
    return value;
  };
  const AttentionSpec& last = target.layers.back().attention();  // whose rows it reads
  config.hidden = as_target("hidden_size", fields.integer("hidden_size", 1, kMaxWidth), target.hidden, "hidden size");
  const int64_t heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  config.heads = as_target("num_attention_heads", heads, last.heads, "number of heads");
  const int64_t kv_heads = fields.integer_or("num_key_value_heads", 1, kMaxHeads, heads);
  config.kv_heads = as_target("num_key_value_heads", kv_heads, last.kv_heads, "number of KV heads");
  const int64_t head_dim = fields.integer_or("head_dim", 1, kMaxHeadDim, config.hidden / heads);
  if (fields.has("head_dim")) as_target("head_dim", head_dim, last.head_dim, "head_dim");
  if (last.head_dim > kMaxDraftHeadDim)
    throw_error(ExitCode::kBadInput, fields.source(),
                str("its target has heads of ", last.head_dim, "; a draft has at most ", kMaxDraftHeadDim));
  config.head_dim = last.head_dim;  // the tensors' shapes must match
  const int64_t vocab = fields.integer_or("vocab_size", 1, kMaxVocab, target.vocab);
  config.vocab = as_target("vocab_size", vocab, target.vocab, "vocabulary");
  config.ffn = fields.integer("intermediate_size", 1, kMaxFfn);
  config.rms_eps = fields.number_or("rms_norm_eps", 1e-12, 1e-1, 1e-6);
  return config;
}

}  // namespace

LongSpecCheckpoint::LongSpecCheckpoint(const std::string& directory, const ModelConfig& target)
    : DraftCheckpoint(directory) {
  config_ = parse(read_small_file(config_file_, kMaxConfigBytes), config_file_, target);
  files_ = TensorFiles(path_);
  name_tensors();
  for (const auto& [name, shape] : expected_tensors(config_)) require(name, shape);
}

void LongSpecCheckpoint::name_tensors() {
  const std::string_view prefix = prefix_of(files_);
  const auto expected = expected_tensors(config_);
  const auto is_expected = [&](const std::string& name) {
    return std::any_of(expected.begin(), expected.end(), [&](const auto& tensor) { return tensor.first == name; });
  };
  for (size_t i = 0; i < files_.tensors().size(); ++i) {
    TensorInfo info = files_.tensors()[i];
    const std::string stored_name = info.name;
    const bool prefixed = info.name.starts_with(prefix);
    if (!prefixed && (info.name.starts_with("model.") || info.name == "lm_head.weight")) continue;  // the target's
    if (prefixed) info.name.erase(0, prefix.size());
    if (prefixed && among(info.name, kIgnoredTensors)) continue;
    if (!prefixed || !is_expected(info.name))
      throw_error(ExitCode::kBadInput, files_.file_of(i),
                  "holds the tensor \"" + printable(stored_name) + "\", which does not belong to a LongSpec draft",
                  "its tensors are named input_layernorm.weight, self_attn.q_proj.weight, … or so with draft_model. or "
                  "glide. before them");
    add_tensor(std::move(info), i);
  }
  finish_tensors();
}

std::unique_ptr<LongSpecCheckpoint> open_longspec(const std::string& model, const ModelConfig& target) {
  return std::make_unique<LongSpecCheckpoint>(find_model(model), target);
}

}  // namespace headrace
