// What a decoder is: its sizes, and a list of layers, each a value. The same whether it came from config.json or from
// GGUF metadata (runtime/model/families). What computes or remembers something of a layer asks the layer, never the
// family.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cache/base.h"
#include "kernels/elementwise/activation.h"

namespace headrace {

enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  int64_t original_max_positions = 0;                    // llama3, yarn; 0: max_positions
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double attention_factor = 0.0;                         // yarn; 0: from mscale, mscale_all_dim or 0.1 ln(factor) + 1
  double mscale = 0.0, mscale_all_dim = 0.0;             // yarn; 0: absent
  bool truncate = true;                                  // yarn: round the correction range to whole dimensions
  // Gemma 4's "proportional": of a head's dimensions, how many turn, with the frequencies that they have among all; the
  // pairs are (j, j + head_dim / 2) for j below half of them. 0: all turn.
  int64_t turning_dims = 0;
  // Ministral 3: q of position p is multiplied by 1 + query_beta * ln(1 + floor(p / query_step)). Beta 0: it is not.
  double query_beta = 0.0;
  int64_t query_step = 1;
  // GGUF's rope_freqs.weight (Llama 3.1 files): per-frequency divisors, [head_dim / 2]; empty if absent.
  std::vector<float> frequency_factors;
};

// The context that a model has, whose config names `positions`: a linear scaling multiplies them, YaRN the positions
// that it began with, and what is larger counts: many configs name the scaled number. Llama 3's scaling is part of what
// the model was trained with. At most `most`.
int64_t scaled_positions(const RopeConfig& rope, int64_t positions, int64_t most);
// Of a row of the RoPE tables, and how many of its dimensions are rotated.
struct RopeSizes {
  int64_t head_dim, max_positions;
  int64_t rotary_dims = 0;  // 0: head_dim
};

// A layer's attention: which heads it has, and what happens to their rows.
struct AttentionSpec {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool qkv_bias = false;     // Qwen2.5; Llama and Seed-OSS with attention_bias
  bool output_bias = false;  // o_proj bias (Llama with attention_bias, Seed-OSS with attention_out_bias)
  bool qk_norm = false;      // Qwen3: RMSNorm over each head of q and k, before rope
  // Qwen3.5: the number of each head's dimensions that are rotated; 0: all. The pairs are (j, j + head_dim / 2) for j
  // below rope_dims / 2, for which the rows of q and k are reordered as they are read
  // (runtime/model/files/row_order.h).
  int64_t rope_dims = 0;
  bool gated_output = false;  // Qwen3.5: the output is multiplied by sigma(gate), of which each head has head_dim
  int64_t window = 0;         // Gemma 3: rows that a query sees, its own included; 0: all
  bool local_rope = false;    // Gemma 3: its angles are those of ModelConfig::local_rope
  double scale = 0.0;         // of scores; 0: 1 / sqrt(head_dim)
  bool v_norm = false;        // Gemma 4: RMSNorm over each head of v, without a weight; only with qk_norm
  bool k_is_v = false;        // Gemma 4: no v_proj; v is what k_proj makes, before k's norm and rope
  bool sinks = false;         // gpt-oss: each head has one more score, without a value
  // Gemma 4 E2B and E4B: the earlier layer whose K and V it attends to, since it makes none; -1: it makes its own.
  int64_t rows_of = -1;

  bool operator==(const AttentionSpec&) const = default;
  int64_t rotary_dims() const { return rope_dims == 0 ? head_dim : rope_dims; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  bool makes_rows() const { return rows_of < 0; }
  int64_t qkv_width() const { return q_width() + (makes_rows() ? (k_is_v ? 1 : 2) * kv_width() : 0); }
  int64_t in_width() const { return qkv_width() + (gated_output ? q_width() : 0); }  // with the gates
};

// A layer with a recurrent state in place of rows: Gated DeltaNet (arXiv 2412.06464), as in Qwen3.5. Each value head
// has a state of k_dim x v_dim, and a causal convolution over `conv` tokens runs over the channels of q, k and v.
struct DeltaNetSpec {
  int64_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0, conv = 0;
  bool tiled = false;  // GGUF: value head j reads key head j % k_heads; else j / (v_heads / k_heads)

  bool operator==(const DeltaNetSpec&) const = default;
  int64_t k_width() const { return k_heads * k_dim; }  // of q, too
  int64_t v_width() const { return v_heads * v_dim; }
  int64_t channels() const { return 2 * k_width() + v_width(); }
};

// Experts, each a feed-forward part of its own, of which a token has the `used` that a router scores highest.
struct ExpertsSpec {
  int64_t count = 0, used = 0, width = 0;
  bool normalised = false;  // the weights of a token's experts are divided by their sum
  // Gemma 4: beside the dense part, each with norms of its own. The router reads the residual stream, normalised and
  // scaled by channel, and each expert has a factor.
  bool beside = false;
  // Qwen3.5: FfnSpec::width is that of an expert which all tokens have. What it makes is multiplied by the sigmoid of a
  // score of its own.
  bool shared = false;
  bool bias = false;  // gpt-oss: of the router's scores, and of each expert's three products

  bool operator==(const ExpertsSpec&) const = default;
  int64_t scores() const { return count + (shared ? 1 : 0); }  // of a token, the shared expert's last
};

// A layer's feed-forward part: down(activation(gate x) * up x), or experts in place of it or beside it; then `width`
// may be that of a shared expert.
struct FfnSpec {
  int64_t width = 0;  // 0: there are experts alone
  Activation activation = Activation::kSilu;
  std::optional<ExpertsSpec> experts = {};
  bool operator==(const FfnSpec&) const = default;
};

template <typename Kind, typename Mixer>
auto& kind_of(Mixer& mixer) {
  auto* const kind = std::get_if<Kind>(&mixer);
  CHECK(kind != nullptr, "a layer of kind ", mixer.index());
  return *kind;
}

struct LayerSpec {
  std::variant<AttentionSpec, DeltaNetSpec> mixer;
  FfnSpec ffn;
  bool output_norms = false;  // Gemma 3: what attention and the feed-forward part add is normalised first
  bool scaled = false;        // Gemma 4: the residual stream is multiplied by a number at the layer's end
  // Gemma 4 E2B and E4B: of what the token itself adds to the layer, before its end; 0: nothing.
  int64_t token_width = 0;

  bool operator==(const LayerSpec&) const = default;
  bool has_attention() const { return std::holds_alternative<AttentionSpec>(mixer); }
  bool keeps_rows() const { return has_attention() && attention().makes_rows(); }
  // REQUIRES: the mixer is of that kind.
  const AttentionSpec& attention() const { return kind_of<AttentionSpec>(mixer); }
  AttentionSpec& attention() { return kind_of<AttentionSpec>(mixer); }
  const DeltaNetSpec& delta_net() const { return kind_of<DeltaNetSpec>(mixer); }
  // Rows of the mixer's first product: q, k, v and the gates; or the channels, z, b and a.
  int64_t in_width() const {
    if (has_attention()) return attention().in_width();
    return delta_net().channels() + delta_net().v_width() + 2 * delta_net().v_heads;
  }
  // Columns of its output product.
  int64_t out_width() const { return has_attention() ? attention().q_width() : delta_net().v_width(); }
};

inline std::vector<LayerSpec> same_layers(int64_t count, const LayerSpec& layer) {
  return std::vector<LayerSpec>(static_cast<size_t>(count), layer);
}

// A block that guesses the token after the next from the model's last state and the next token's embedding.
struct MtpSpec {
  LayerSpec layer;
  bool own_norm = true;  // before the head; else it is the model's last norm

  bool operator==(const MtpSpec&) const = default;
};

struct ModelConfig {
  std::string family;  // "llama", "ministral3", "mistral", "mistral3" (GGUF: with or without query_beta), "phi3",
                       // "qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "seed_oss", "gemma3", "gemma4", "gpt-oss"
  int64_t hidden = 0, vocab = 0, max_positions = 0;
  double rms_eps = 1e-5;
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  // of layers that say so
  std::vector<LayerSpec> layers;
  std::optional<MtpSpec> mtp;
  bool tied_head = false;         // lm_head is the embedding
  bool scaled_embedding = false;  // embeddings are multiplied by sqrt(hidden), rounded to the weights' type
  double logit_cap = 0;           // logits are cap * tanh(logit / cap); 0: as they are
  // Rows of 8 bits or fewer are known to change the model's choices much (docs/design.md, section 10): nothing but a
  // flag takes them, for the cache or for copies.
  bool exact_rows = false;
  bool images = false;  // the model takes images, too; what reads them is not loaded (Mistral 3, Qwen3.5, Gemma)
  std::vector<int32_t> end_ids;  // eos ids that the config or generation_config.json names

  int64_t layer_count() const { return static_cast<int64_t>(layers.size()); }
  const LayerSpec& layer(int64_t index) const { return layers[static_cast<size_t>(index)]; }
  // Of the first layer that sees all rows, or, if none does, of the first with attention. Layers with a window may have
  // other heads (Gemma 4).
  const AttentionSpec& attention() const {
    const LayerSpec* first = nullptr;
    for (const LayerSpec& layer : layers) {
      if (!layer.has_attention()) continue;
      if (layer.attention().window == 0) return layer.attention();
      if (first == nullptr) first = &layer;
    }
    return first->attention();
  }
  // Of the layers whose angles are those of local_rope, or of the others.
  RopeSizes rope_sizes(bool local = false) const {
    const auto rotated = std::find_if(layers.begin(), layers.end(), [=](const LayerSpec& layer) {
      return layer.has_attention() && layer.attention().local_rope == local;
    });
    const AttentionSpec& a = rotated != layers.end() ? rotated->attention() : attention();
    return {.head_dim = a.head_dim, .max_positions = max_positions, .rotary_dims = a.rope_dims};
  }
  int64_t rope_dims() const { return rope_sizes().head_dim; }  // of a row of the tables of rope
  // Of K and V of a token, in all layers that keep each token's; of V alone where K is made of it.
  int64_t kv_values() const {
    int64_t sum = 0;
    for (const LayerSpec& layer : layers) {
      if (layer.keeps_rows() && layer.attention().window == 0) {
        sum += (layer.attention().k_is_v ? 1 : 2) * layer.attention().kv_width();
      }
    }
    return sum;
  }
  int64_t token_width() const { return layers.front().token_width; }  // of each layer
  bool shares_rows() const {                                          // some layers read those of others
    return std::any_of(layers.begin(), layers.end(),
                       [](const LayerSpec& layer) { return layer.has_attention() && !layer.keeps_rows(); });
  }
};

// Inverse frequencies, [head_dim / 2] in f32 as the reference implementation computes them, and the factor that cos and
// sin are multiplied by (1 but for yarn). Of the places from rotary_dims / 2 on the frequency is 0: they pass. Pure.
// transformers' modeling_rope_utils is the reference.
struct RopeTable {
  std::vector<float> inv_freq;
  float scale = 1.0f;
};
RopeTable make_rope_table(const RopeConfig& rope, const RopeSizes& sizes);
inline RopeTable make_rope_table(const RopeConfig& rope, int64_t head_dim, int64_t max_positions) {
  return make_rope_table(rope, {.head_dim = head_dim, .max_positions = max_positions});
}

// "FFN 14336", "8 of 128 experts with FFN 768"
std::string ffn_text(const FfnSpec& ffn);
// "32 layers of 4096, 32 heads and 8 KV heads of 128, FFN 14336"
std::string layers_text(const ModelConfig& config);

}  // namespace headrace
