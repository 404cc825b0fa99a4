// Qwen3.5, 3.6 and 3.8: three of four layers are Gated DeltaNet, one is attention with a gated output, whose heads
// rotate a part of their dimensions. A block behind the layers guesses the token after the next (MTP). All layers are
// dense, or all have experts and a shared one (35B-A3B). The part that reads images is not loaded. Norm weights are
// stored as w and multiply by 1 + w, in GGUF files as 1 + w.
#include <cmath>

#include "cache/base.h"
#include "runtime/base/end_ids.h"
#include "runtime/base/json_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/families/llama_like.h"
#include "runtime/model/rope_json.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr int64_t kConvolution = 4;  // tokens; no file has another
constexpr int64_t kInterval = 4;     // each fourth layer is attention, where nothing else is said

// ---- config.json ----

void refuse_qwen35(const JsonFields& fields) {
  if (!fields.boolean_or("attn_output_gate", true)) fields.refuse("attn_output_gate", "is not supported (true is)");
  const std::string gate = fields.string_or("output_gate_type", "swish");
  if (gate != "swish" && gate != "silu") fields.refuse("output_gate_type", "is not supported (\"swish\" is)");
  if (fields.boolean_or("attention_bias", false)) fields.refuse("attention_bias", "is not supported (false is)");
  if (fields.boolean_or("mtp_use_dedicated_embeddings", false))
    fields.refuse("mtp_use_dedicated_embeddings", "is not supported (false is)");
}

AttentionSpec read_gated_attention(const JsonFields& fields, const ModelConfig& config) {
  AttentionSpec attention = read_heads(fields, config, {.head_dim = 256});
  attention.qk_norm = attention.gated_output = true;
  const double part = rotary_part(fields, 0.25), dims = part * static_cast<double>(attention.head_dim);
  if (dims != std::floor(dims) || dims < 2 || std::fmod(dims, 2) != 0)
    throw_error(ExitCode::kBadInput, fields.source(),
                str("partial_rotary_factor ", part, " of head_dim ", attention.head_dim, " is ", dims,
                    " dimensions; an even number is expected"));
  attention.rope_dims = static_cast<int64_t>(dims);
  return attention;
}

DeltaNetSpec read_delta_net(const JsonFields& fields) {
  DeltaNetSpec delta;
  delta.k_heads = fields.integer_or("linear_num_key_heads", 1, kMaxHeads, 16);
  delta.v_heads = fields.integer_or("linear_num_value_heads", 1, kMaxHeads, 32);
  delta.k_dim = fields.integer_or("linear_key_head_dim", 1, kMaxHeadDim, 128);
  delta.v_dim = fields.integer_or("linear_value_head_dim", 1, kMaxHeadDim, 128);
  delta.conv = fields.integer_or("linear_conv_kernel_dim", 1, kMaxHeadDim, kConvolution);
  if (delta.conv != kConvolution)
    fields.refuse("linear_conv_kernel_dim", str("is not supported (", kConvolution, " is)"));
  return delta;
}

// Which of the layers are attention, if each interval-th is.
std::vector<bool> each_nth(int64_t layers, int64_t interval) {
  std::vector<bool> attention(static_cast<size_t>(layers));
  for (int64_t i = interval - 1; i < layers; i += interval) attention[static_cast<size_t>(i)] = true;
  return attention;
}

// layer_types, or each full_attention_interval-th layer.
std::vector<bool> read_attention_layers(const JsonFields& fields) {
  const int64_t layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  const json* types = fields.find("layer_types");
  if (types == nullptr) return each_nth(layers, fields.integer_or("full_attention_interval", 1, kMaxLayers, kInterval));
  std::vector<bool> attention(static_cast<size_t>(layers));
  if (!types->is_array()) fields.refuse("layer_types", "must be a list");
  if (types->size() != attention.size())
    throw_error(ExitCode::kBadInput, fields.source(),
                str(fields.label("layer_types"), " holds ", types->size(), " layers, but ",
                    fields.label("num_hidden_layers"), " is ", layers));
  for (size_t i = 0; i < attention.size(); ++i) {
    const json& type = (*types)[i];
    attention[i] = type == "full_attention";
    if (!attention[i] && type != "linear_attention")
      throw_error(ExitCode::kBadInput, fields.source(),
                  str(fields.label("layer_types"), " holds ", shown(type), " for layer ", i,
                      "; \"linear_attention\" and \"full_attention\" are supported"));
  }
  return attention;
}

void set_layers(const std::vector<bool>& attention_layers, const AttentionSpec& attention, const DeltaNetSpec& delta,
                const FfnSpec& ffn, ModelConfig* config) {
  for (const bool attends : attention_layers)
    config->layers.push_back(attends ? LayerSpec{.mixer = attention, .ffn = ffn}
                                     : LayerSpec{.mixer = delta, .ffn = ffn});
}

FfnSpec read_dense(const JsonFields& fields) { return {fields.integer("intermediate_size", 1, kMaxFfn)}; }

FfnSpec read_shared_experts(const JsonFields& fields) {
  refuse_dense_layers(fields);
  ExpertsSpec experts = read_expert_counts(fields, {.usual_count = 256, .usual_used = 8});
  experts.normalised = experts.shared = true;
  experts.width = fields.integer_or("moe_intermediate_size", 1, kMaxFfn, 512);
  return {.width = fields.integer_or("shared_expert_intermediate_size", 1, kMaxFfn, 512), .experts = experts};
}

using ReadFfn = FfnSpec (*)(const JsonFields& fields);

void read_text(const JsonFields& fields, ReadFfn read_ffn, ModelConfig* config) {
  read_sizes(fields, config);
  refuse_qwen35(fields);
  const AttentionSpec attention = read_gated_attention(fields, *config);
  const FfnSpec ffn = read_ffn(fields);
  set_layers(read_attention_layers(fields), attention, read_delta_net(fields), ffn, config);
  if (fields.integer_or("mtp_num_hidden_layers", 0, 1, 0) == 1)
    config->mtp = MtpSpec{.layer = {.mixer = attention, .ffn = ffn}};
  config->rope = parse_rope(fields, config->max_positions, {.part = true});
  config->max_positions = scaled_positions(config->rope, config->max_positions, kMaxPositions);
  config->tied_head = fields.boolean_or("tie_word_embeddings", false);
  append_end_ids(fields, config->vocab, &config->end_ids);
}

// `type`: the model_type of the whole; that of the text part ends in "_text".
void read_whole(const JsonFields& whole, const std::string& type, ReadFfn read_ffn, ModelConfig* config) {
  const json* inner = whole.find("text_config");
  if (inner == nullptr) return read_text(whole, read_ffn, config);
  if (!inner->is_object()) whole.refuse("text_config", "must be an object: the decoder's config");
  refuse_unsupported(whole);
  const JsonFields fields(*inner, whole.source(), "text_config.");
  const std::string of_text = fields.string_or("model_type", type);
  if (of_text != type && of_text != type + "_text")
    fields.refuse("model_type", "is not supported", "supported: " + type + "_text");
  read_text(fields, read_ffn, config);
  config->images = true;
  append_end_ids(whole, config->vocab, &config->end_ids);
}

void read_qwen35(const JsonFields& whole, ModelConfig* config) { read_whole(whole, "qwen3_5", read_dense, config); }
void read_qwen35moe(const JsonFields& whole, ModelConfig* config) {
  read_whole(whole, "qwen3_5_moe", read_shared_experts, config);
}

std::string qwen35_tensor(std::string_view stored) {
  constexpr std::string_view kNow = "model.language_model.", kBefore = "language_model.";
  if (stored.starts_with("model.visual.") || stored.starts_with("visual.")) return "";
  if (stored.starts_with(kNow)) return str("model.", stored.substr(kNow.size()));
  if (stored.starts_with(kBefore)) return std::string(stored.substr(kBefore.size()));
  return std::string(stored);
}

const std::vector<StoredValues>& qwen35_stored() {
  static const std::vector<StoredValues> stored = {{"linear_attn.norm.weight", "", StoredAs::kItself},
                                                   {"norm.weight", "", StoredAs::kLessOne},
                                                   {"pre_fc_norm_embedding.weight", "", StoredAs::kLessOne},
                                                   {"pre_fc_norm_hidden.weight", "", StoredAs::kLessOne},
                                                   {"linear_attn.A_log", "linear_attn.A", StoredAs::kLogOfNegative}};
  return stored;
}

// ---- GGUF ----

AttentionSpec read_gated_attention(const GgufSource& source, const ModelConfig& config) {
  AttentionSpec attention = read_heads(source, config, RopeDims::kPart);
  attention.qk_norm = attention.gated_output = true;
  return attention;
}

DeltaNetSpec read_delta_net(const GgufSource& source) {
  const GgufFields& fields = source.fields;
  DeltaNetSpec delta;
  delta.k_heads = fields.integer(source.key("ssm.group_count"), 1, kMaxHeads);
  delta.v_heads = fields.integer(source.key("ssm.time_step_rank"), 1, kMaxHeads);
  delta.k_dim = delta.v_dim = fields.integer(source.key("ssm.state_size"), 1, kMaxHeadDim);
  delta.tiled = true;
  delta.conv = fields.integer(source.key("ssm.conv_kernel"), 1, kMaxHeadDim);
  if (delta.conv != kConvolution)
    fields.refuse(source.key("ssm.conv_kernel"), str(delta.conv, " is not supported (", kConvolution, " is)"));
  const int64_t inner = fields.integer(source.key("ssm.inner_size"), 1, kMaxWidth);
  if (inner != delta.v_width())
    fields.refuse(source.key("ssm.inner_size"),
                  str(inner, " is not the ", delta.v_heads, " value heads of ", delta.v_dim, " of ",
                      source.key("ssm.time_step_rank"), " and ", source.key("ssm.state_size")));
  return delta;
}

// Of `layers`, without MTP's block: the array, which newer files have, or each full_attention_interval-th layer.
std::vector<bool> read_attention_layers(const GgufSource& source, int64_t layers, int64_t blocks) {
  const std::string key = source.key("attention.recurrent_layers");
  if (!source.fields.has(key)) {
    return each_nth(layers, source.fields.integer_or(source.key("full_attention_interval"), 1, kMaxLayers, kInterval));
  }
  std::vector<bool> attention(static_cast<size_t>(layers));
  const std::vector<bool> recurrent = source.fields.booleans(key);
  if (recurrent.size() != static_cast<size_t>(blocks))
    source.fields.refuse(key,
                         str("holds ", recurrent.size(), " values, but ", source.key("block_count"), " is ", blocks));
  for (size_t i = 0; i < attention.size(); ++i) attention[i] = !recurrent[i];
  for (size_t i = attention.size(); i < recurrent.size(); ++i)
    if (recurrent[i]) source.fields.refuse(key, str("says that block ", i, ", which is MTP's, is recurrent"));
  return attention;
}

// A shared expert whose width the file does not say is as wide as the others.
FfnSpec read_shared_experts(const GgufSource& source) {
  ExpertsSpec experts = read_expert_counts(source);
  experts.shared = true;
  experts.width = source.fields.integer(source.key("expert_feed_forward_length"), 1, kMaxFfn);
  const int64_t shared =
      source.fields.integer_or(source.key("expert_shared_feed_forward_length"), 1, kMaxFfn, experts.width);
  return {.width = shared, .experts = experts};
}

void read_blocks(const GgufSource& source, const FfnSpec& ffn, ModelConfig* config) {
  const GgufFields& fields = source.fields;
  refuse_query_scale(source);
  read_rope(source, config);
  const AttentionSpec attention = read_gated_attention(source, *config);
  const int64_t mtp = fields.integer_or(source.key("nextn_predict_layers"), 0, 1, 0);
  const int64_t blocks = fields.integer(source.key("block_count"), mtp + 1, kMaxLayers);
  set_layers(read_attention_layers(source, blocks - mtp, blocks), attention, read_delta_net(source), ffn, config);
  const std::string block = str("blk.", blocks - mtp, ".nextn.");
  for (const char* name : {"embed_tokens.weight", "shared_head_head.weight"})
    if (mtp == 1 && source.file.find(block + name) != nullptr)
      throw_error(
          ExitCode::kBadInput, source.file.source,
          str("has the tensor ", block, name, ": an MTP block with its own embedding or head is not supported"));
  if (mtp == 1)
    config->mtp = MtpSpec{.layer = {.mixer = attention, .ffn = ffn},
                          .own_norm = source.file.find(block + "shared_head_norm.weight") != nullptr};
  config->tied_head = source.file.find("output.weight") == nullptr;
}

void read_qwen35_gguf(const GgufSource& source, ModelConfig* config) {
  read_sizes(source, config);
  read_blocks(source, {source.fields.integer(source.key("feed_forward_length"), 1, kMaxFfn)}, config);
}
void read_qwen35moe_gguf(const GgufSource& source, ModelConfig* config) {
  read_sizes(source, config, Mixtures::kAllowed);
  read_blocks(source, read_shared_experts(source), config);
}

const std::vector<TensorName>& qwen35_tensors() {
  static const std::vector<TensorName> names = {{"attn_norm", "input_layernorm"},
                                                {"post_attention_norm", "post_attention_layernorm"},
                                                {"attn_q", "self_attn.q_proj"},
                                                {"attn_k", "self_attn.k_proj"},
                                                {"attn_v", "self_attn.v_proj"},
                                                {"attn_output", "self_attn.o_proj"},
                                                {"attn_q_norm", "self_attn.q_norm"},
                                                {"attn_k_norm", "self_attn.k_norm"},
                                                {"attn_qkv", "linear_attn.in_proj_qkv"},
                                                {"attn_gate", "linear_attn.in_proj_z"},
                                                {"ssm_beta", "linear_attn.in_proj_b"},
                                                {"ssm_alpha", "linear_attn.in_proj_a"},
                                                {"ssm_conv1d", "linear_attn.conv1d"},
                                                {"ssm_dt.bias", "linear_attn.dt_bias", true},
                                                {"ssm_a", "linear_attn.A", true},
                                                {"ssm_norm", "linear_attn.norm"},
                                                {"ssm_out", "linear_attn.out_proj"},
                                                {"ffn_gate", "mlp.gate_proj"},
                                                {"ffn_up", "mlp.up_proj"},
                                                {"ffn_down", "mlp.down_proj"},
                                                {"ffn_gate_inp", "mlp.gate"},
                                                {"ffn_gate_up_exps", "mlp.experts.gate_up_proj"},
                                                {"ffn_gate_exps", "mlp.experts.gate_proj"},
                                                {"ffn_up_exps", "mlp.experts.up_proj"},
                                                {"ffn_down_exps", "mlp.experts.down_proj"},
                                                {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
                                                {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                                                {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                                                {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
                                                {"nextn.eh_proj", "mtp.fc"},
                                                {"nextn.enorm", "mtp.pre_fc_norm_embedding"},
                                                {"nextn.hnorm", "mtp.pre_fc_norm_hidden"},
                                                {"nextn.shared_head_norm", "mtp.norm"}};
  return names;
}

}  // namespace

const Family& qwen35_family() {
  static const Family family = {
      .json = {{.name = "qwen35",
                .model_types = {"qwen3_5", "qwen3_5_text"},
                .architectures = {"Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"},
                .read = read_qwen35,
                .tensor_name = qwen35_tensor,
                .stored = qwen35_stored()},
               {.name = "qwen35moe",
                .model_types = {"qwen3_5_moe", "qwen3_5_moe_text"},
                .architectures = {"Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"},
                .read = read_qwen35moe,
                .tensor_name = qwen35_tensor,
                .stored = qwen35_stored()}},
      .gguf = {{.architecture = "qwen35", .also = "", .read = read_qwen35_gguf, .tensors = qwen35_tensors()},
               {.architecture = "qwen35moe", .also = "", .read = read_qwen35moe_gguf, .tensors = qwen35_tensors()}},
      .refused = {{{"qwen3_next", "Qwen3NextForCausalLM", "qwen3next"},
                   "is Qwen3-Next, a mixture of experts whose DeltaNet layers store their matrices in another order"},
                  {{"qwen4_exp", "qwen4exp"}, "has block-sparse attention and hyper-connections"}}};
  return family;
}

}  // namespace headrace
