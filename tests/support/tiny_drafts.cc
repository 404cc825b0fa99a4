#include "tests/support/tiny_drafts.h"

#include <cstring>
#include <map>
#include <string>

namespace headrace::testing_support {
namespace {

// Weights this small leave a layer's input nearly unchanged, and logits flat: then the sampling noise, which draft and
// target share, makes them agree now and then.
void add_small(DraftFiles* files, const std::string& name, const std::vector<int64_t>& shape) {
  files->add(name, shape);
  std::string& bytes = files->tensors[name].bytes;
  for (size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    float value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    value *= 0.05f;
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
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

}  // namespace headrace::testing_support
