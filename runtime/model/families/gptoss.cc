// gpt-oss: every second layer sees a window of rows, the first among them; each head has a sink; experts with biases in
// place of each layer's feed-forward part, whose gates and ups are clamped.
#include "cache/base.h"
#include "runtime/base/end_ids.h"
#include "runtime/base/json_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/families/fp8_json.h"
#include "runtime/model/families/llama_like.h"
#include "runtime/model/families/windows.h"
#include "runtime/model/rope_json.h"

namespace headrace {
namespace {

constexpr int64_t kGptOssPattern = 2;
constexpr double kGptOssTheta = 150000;

struct GptOssSizes {
  int64_t layers, window;
  AttentionSpec attention;
  ExpertsSpec experts;
};
void set_gptoss_layers(const std::vector<bool>& windows, const GptOssSizes& sizes, ModelConfig* config) {
  config->exact_rows = true;
  LayerSpec layer{.mixer = sizes.attention, .ffn = {.activation = Activation::kClampedSilu, .experts = sizes.experts}};
  layer.attention().sinks = true;
  layer.ffn.experts->normalised = layer.ffn.experts->bias = true;
  for (const bool has_window : windows) {
    layer.attention().window = has_window ? sizes.window : 0;
    config->layers.push_back(layer);
  }
}

// ---- config.json ----

void refuse_gptoss(const JsonFields& fields) {
  fp8_blocks(fields);
  const std::string activation = fields.string_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") fields.refuse("hidden_act", "is not supported (\"silu\" is)");
  const auto expect = [&](const char* key, float value) {
    if (static_cast<float>(fields.number_or(key, 0, 1e9, static_cast<double>(value))) != value)
      fields.refuse(key, str("is not supported (", value, " is)"));
  };
  expect("swiglu_alpha", kClampedSlope);
  expect("swiglu_limit", kClampedMost);
}

// A config that says nothing of positions means those of the published models.
RopeConfig read_gptoss_rope(const JsonFields& fields, int64_t positions) {
  RopeConfig rope = parse_rope(fields, positions, {.theta = kGptOssTheta});
  if (fields.has("rope_parameters") || fields.has("rope_scaling")) return rope;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 32;
  rope.original_max_positions = 4096;
  rope.truncate = false;
  return rope;
}

void read_gptoss(const JsonFields& fields, ModelConfig* config) {
  refuse_gptoss(fields);
  config->hidden = fields.integer("hidden_size", 1, kMaxWidth);
  config->vocab = fields.integer("vocab_size", 1, kMaxVocab);
  config->max_positions = fields.integer_or("max_position_embeddings", 1, kMaxPositions, 131072);
  config->rms_eps = fields.number_or("rms_norm_eps", 1e-12, 1e-1, 1e-5);
  GptOssSizes sizes;
  sizes.layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  sizes.window = fields.integer_or("sliding_window", 1, kMaxPositions, 128);
  sizes.attention = read_heads(fields, *config, {.head_dim = 64});
  sizes.attention.qkv_bias = sizes.attention.output_bias = fields.boolean_or("attention_bias", true);
  sizes.experts = read_expert_counts(fields, {.count = "num_local_experts", .usual_used = 4});
  sizes.experts.width = fields.integer("intermediate_size", 1, kMaxFfn);
  set_gptoss_layers(read_windows(fields, sizes.layers, kGptOssPattern), sizes, config);
  config->rope = read_gptoss_rope(fields, config->max_positions);
  config->max_positions = scaled_positions(config->rope, config->max_positions, kMaxPositions);
  config->tied_head = fields.boolean_or("tie_word_embeddings", false);
  append_end_ids(fields, config->vocab, &config->end_ids);
}

// As runtime/model/files/tensor_parts.cc names what is stored of all experts together.
std::string gptoss_tensor(std::string_view stored) {
  constexpr std::pair<std::string_view, std::string_view> kEnds[] = {
      {".mlp.router.weight", ".mlp.gate.weight"},
      {".mlp.router.bias", ".mlp.gate.bias"},
      {".mlp.experts.gate_up_proj", ".mlp.experts.gate_up_proj.columns"},
      {".mlp.experts.down_proj", ".mlp.experts.down_proj.columns"},
      {".mlp.experts.gate_up_proj_bias", ".mlp.experts.gate_up_proj.bias"},
      {".mlp.experts.down_proj_bias", ".mlp.experts.down_proj.bias"},
      {".mlp.experts.gate_up_proj_blocks", ".mlp.experts.gate_up_proj.blocks"},
      {".mlp.experts.gate_up_proj_scales", ".mlp.experts.gate_up_proj.scales"},
      {".mlp.experts.down_proj_blocks", ".mlp.experts.down_proj.blocks"},
      {".mlp.experts.down_proj_scales", ".mlp.experts.down_proj.scales"}};
  for (const auto& [end, decoder] : kEnds)
    if (stored.ends_with(end)) return str(stored.substr(0, stored.size() - end.size()), decoder);
  return std::string(stored);
}

// ---- GGUF ----

void read_gptoss_gguf(const GgufSource& source, ModelConfig* config) {
  const GgufFields& fields = source.fields;
  read_sizes(source, config, Mixtures::kAllowed);
  refuse_query_scale(source);
  read_rope(source, config);
  config->rope.truncate = false;  // as the published models' configs say; a file has no key for it
  GptOssSizes sizes;
  sizes.layers = fields.integer(source.key("block_count"), 1, kMaxLayers);
  sizes.window = fields.integer(source.key("attention.sliding_window"), 1, kMaxPositions);
  sizes.attention = read_heads(source, *config, RopeDims::kAll, Windows::kAllowed);
  sizes.experts = read_expert_counts(source);
  const std::string width = source.key("expert_feed_forward_length");
  sizes.experts.width = fields.integer(fields.has(width) ? width : source.key("feed_forward_length"), 1, kMaxFfn);
  set_gptoss_layers(read_windows(source, sizes.layers, kGptOssPattern), sizes, config);
  config->tied_head = source.file.find("output.weight") == nullptr;
}

const std::vector<TensorName>& gptoss_tensors() {
  static const std::vector<TensorName> names = {{"attn_norm", "input_layernorm"},
                                                {"post_attention_norm", "post_attention_layernorm"},
                                                {"attn_q", "self_attn.q_proj"},
                                                {"attn_k", "self_attn.k_proj"},
                                                {"attn_v", "self_attn.v_proj"},
                                                {"attn_output", "self_attn.o_proj"},
                                                {"attn_sinks.weight", "self_attn.sinks", true},
                                                {"ffn_gate_inp", "mlp.gate"},
                                                {"ffn_gate_exps", "mlp.experts.gate_proj"},
                                                {"ffn_up_exps", "mlp.experts.up_proj"},
                                                {"ffn_down_exps", "mlp.experts.down_proj"}};
  return names;
}

}  // namespace

const Family& gptoss_family() {
  static const Family family = {
      .json = {{.name = "gpt-oss",
                .model_types = {"gpt_oss"},
                .architectures = {"GptOssForCausalLM"},
                .read = read_gptoss,
                .tensor_name = gptoss_tensor}},
      .gguf = {{.architecture = "gpt-oss", .also = "", .read = read_gptoss_gguf, .tensors = gptoss_tensors()}}};
  return family;
}

}  // namespace headrace
