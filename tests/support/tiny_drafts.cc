#include "tests/support/tiny_drafts.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "cache/base.h"

namespace headrace::testing_support {
namespace {

// Weights this small leave a layer's input nearly unchanged, and logits flat: then the sampling noise, which draft and
// target share, makes them agree now and then.
constexpr float kSmall = 0.05f;

// value(index, value before).
template <typename Value>
void change(FileTensor* tensor, const Value& value) {
  std::string& bytes = tensor->bytes;
  for (size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    float changed;
    std::memcpy(&changed, bytes.data() + at, sizeof changed);
    changed = value(at / sizeof(float), changed);
    std::memcpy(bytes.data() + at, &changed, sizeof changed);
  }
}

void add_small(DraftFiles* files, const std::string& name, const std::vector<int64_t>& shape, float scale = kSmall) {
  files->add(name, shape);
  change(&files->tensors[name], [&](size_t, float value) { return scale * value; });
}

// A layer with gated attention of 4 heads of 16 and 2 KV heads.
void add_gated_layer(DraftFiles* files, const std::string& layer, float scale) {
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
    add_small(files, layer + norm + ".weight", {64}, 0.2f);
  for (const char* norm : {"q_norm", "k_norm"}) add_small(files, layer + "self_attn." + norm + ".weight", {16}, 0.2f);
  add_small(files, layer + "self_attn.q_proj.weight", {2 * 64, 64}, scale);
  add_small(files, layer + "self_attn.k_proj.weight", {32, 64}, scale);
  add_small(files, layer + "self_attn.v_proj.weight", {32, 64}, scale);
  add_small(files, layer + "self_attn.o_proj.weight", {64, 64}, scale);
  add_small(files, layer + "mlp.gate_proj.weight", {128, 64}, scale);
  add_small(files, layer + "mlp.up_proj.weight", {128, 64}, scale);
  add_small(files, layer + "mlp.down_proj.weight", {64, 128}, scale);
}

}  // namespace

DraftFiles tiny_eagle3_head(const TinyTarget& target) {
  const int64_t hidden = target.hidden;
  DraftFiles files;
  files.config = {{"architectures", {"LlamaForCausalLMEagle3"}},
                  {"model_type", "llama"},
                  {"hidden_size", hidden},
                  {"intermediate_size", 96},
                  {"num_hidden_layers", 1},
                  {"num_attention_heads", 4},
                  {"num_key_value_heads", 2},
                  {"vocab_size", target.vocab},
                  {"eagle_aux_hidden_state_layer_ids", target.tapped_layers}};
  for (const char* norm :
       {"midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm"})
    files.add(std::string(norm) + ".weight", {hidden});
  add_small(&files, "fc.weight", {hidden, 3 * hidden});
  add_small(&files, "lm_head.weight", {target.vocab, hidden});
  add_small(&files, "midlayer.self_attn.q_proj.weight", {hidden, 2 * hidden});
  add_small(&files, "midlayer.self_attn.k_proj.weight", {hidden / 2, 2 * hidden});
  add_small(&files, "midlayer.self_attn.v_proj.weight", {hidden / 2, 2 * hidden});
  add_small(&files, "midlayer.self_attn.o_proj.weight", {hidden, hidden});
  add_small(&files, "midlayer.mlp.gate_proj.weight", {96, hidden});
  add_small(&files, "midlayer.mlp.up_proj.weight", {96, hidden});
  add_small(&files, "midlayer.mlp.down_proj.weight", {hidden, 96});
  return files;
}

DraftFiles tiny_longspec_layer(const TinyTarget& target) {
  const int64_t hidden = target.hidden;
  DraftFiles files;
  files.config = {{"hidden_size", hidden},    {"intermediate_size", 96}, {"num_attention_heads", 4},
                  {"num_key_value_heads", 2}, {"rms_norm_eps", 1e-5},    {"vocab_size", target.vocab}};
  for (const char* norm : {"input_layernorm", "post_self_attention_layernorm", "post_cross_attention_layernorm"})
    files.add(std::string(norm) + ".weight", {hidden});
  for (const auto& [name, rows] : std::map<std::string, int64_t>{{"self_attn.q_proj", hidden},
                                                                 {"self_attn.k_proj", hidden / 2},
                                                                 {"self_attn.v_proj", hidden / 2},
                                                                 {"cross_attn.q_proj", hidden}}) {
    add_small(&files, name + ".weight", {rows, hidden});
    add_small(&files, name + ".bias", {rows});
  }
  add_small(&files, "self_attn.o_proj.weight", {hidden, hidden});
  add_small(&files, "cross_attn.o_proj.weight", {hidden, hidden});
  add_small(&files, "mlp.gate_proj.weight", {96, hidden});
  add_small(&files, "mlp.up_proj.weight", {96, hidden});
  add_small(&files, "mlp.down_proj.weight", {hidden, 96});
  return files;
}

// What follows a token depends on it and, less, on the tokens before. The block passes its token's embedding on, so it
// is often right.
DraftFiles tiny_mtp_model() {
  constexpr int64_t kHidden = 64, kVocab = 512, kLayers = 4;
  constexpr float kOfTarget = 0.2f;
  DraftFiles files;
  files.config = {{"architectures", {"Qwen3_5ForCausalLM"}},
                  {"model_type", "qwen3_5_text"},
                  {"hidden_size", kHidden},
                  {"intermediate_size", 128},
                  {"num_hidden_layers", kLayers},
                  {"layer_types", std::vector<std::string>(kLayers, "full_attention")},
                  {"num_attention_heads", 4},
                  {"num_key_value_heads", 2},
                  {"head_dim", 16},
                  {"rms_norm_eps", 1e-6},
                  {"vocab_size", kVocab},
                  {"max_position_embeddings", 4096},
                  {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e7}, {"partial_rotary_factor", 0.25}}},
                  {"tie_word_embeddings", false},
                  {"mtp_num_hidden_layers", 1},
                  {"eos_token_id", {7, 107, 207, 307, 407}}};  // often met
  files.add("model.embed_tokens.weight", {kVocab, kHidden});
  for (int64_t i = 0; i < kLayers; ++i) add_gated_layer(&files, str("model.layers.", i, "."), kOfTarget);
  add_small(&files, "model.norm.weight", {kHidden}, 0.2f);
  add_small(&files, "lm_head.weight", {kVocab, kHidden}, 0.3f);
  for (const char* norm : {"pre_fc_norm_embedding", "pre_fc_norm_hidden"})
    add_small(&files, str("mtp.", norm, ".weight"), {kHidden}, 0.2f);
  add_small(&files, "mtp.fc.weight", {kHidden, 2 * kHidden});
  change(&files.tensors["mtp.fc.weight"],
         [&](size_t index, float value) { return index % (2 * kHidden) == index / (2 * kHidden) ? 1 : value; });
  add_gated_layer(&files, "mtp.layers.0.", kSmall);
  return files;
}

}  // namespace headrace::testing_support
