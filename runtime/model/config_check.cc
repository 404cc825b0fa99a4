#include "runtime/model/config_check.h"

#include <algorithm>
#include <cmath>

#include "cache/base.h"

namespace headrace {

void check_rope(const RopeConfig& rope, int64_t rotary_dims, const std::string& source) {
  const auto refuse = [&](const std::string& what) { throw_error(ExitCode::kBadInput, source, what); };
  if (rope.scaling == RopeScaling::kLlama3 && rope.high_freq_factor <= rope.low_freq_factor)
    refuse(
        str("rope high_freq_factor ", rope.high_freq_factor, " must be above low_freq_factor ", rope.low_freq_factor));
  if (rope.scaling == RopeScaling::kYarn && rope.beta_fast < rope.beta_slow)
    refuse(str("rope beta_fast ", rope.beta_fast, " must not be below beta_slow ", rope.beta_slow));
  if (rope.scaling == RopeScaling::kYarn && rope.theta <= 1)
    refuse(str("rope theta ", rope.theta, " must be above 1 for yarn"));
  if (rope.turning_dims < 0 || rope.turning_dims > rotary_dims || rope.turning_dims % 2 != 0)
    refuse(str("rope turns ", rope.turning_dims, " dimensions; an even number up to ", rotary_dims, " is expected"));
  const size_t half = static_cast<size_t>(rotary_dims / 2);
  if (!rope.frequency_factors.empty() && rope.frequency_factors.size() != half)
    refuse(str("rope_freqs.weight holds ", rope.frequency_factors.size(), " factors; head_dim ", rotary_dims, " needs ",
               half));
  for (const float factor : rope.frequency_factors)
    if (!(factor > 0 && factor <= 1e9f)) refuse(str("rope_freqs.weight holds ", factor, "; a factor must be above 0"));
}

int64_t scaled_positions(const RopeConfig& rope, int64_t positions, int64_t most) {
  const bool yarn = rope.scaling == RopeScaling::kYarn;
  if (!yarn && rope.scaling != RopeScaling::kLinear) return positions;
  const int64_t from = yarn && rope.original_max_positions > 0 ? rope.original_max_positions : positions;
  const double scaled = std::floor(static_cast<double>(from) * rope.factor);
  return std::max(positions, static_cast<int64_t>(std::min(scaled, static_cast<double>(most))));
}

void check_attention(const AttentionSpec& a, const RopeConfig& rope, const std::string& source) {
  const auto refuse = [&](const std::string& what) { throw_error(ExitCode::kBadInput, source, what); };
  if (a.heads % a.kv_heads != 0)
    refuse(str("num_attention_heads ", a.heads, " is not a multiple of num_key_value_heads ", a.kv_heads));
  if (a.head_dim % 2 != 0) refuse(str("head_dim ", a.head_dim, " is odd; rotary pairs need an even one"));
  if (a.head_dim > kMaxComputedHeadDim)
    refuse(str("head_dim ", a.head_dim, " is above ", kMaxComputedHeadDim, ", the most that attention computes"));
  if (a.q_width() > kMaxWidth)
    refuse(str("num_attention_heads ", a.heads, " x head_dim ", a.head_dim, " is above ", kMaxWidth));
  if (a.rotary_dims() > a.head_dim || a.rotary_dims() % 2 != 0)
    refuse(str("rope rotates ", a.rotary_dims(), " dimensions; an even number up to head_dim ", a.head_dim,
               " is expected"));
  check_rope(rope, a.rotary_dims(), source);
}

void check_delta_net(const DeltaNetSpec& d, const std::string& source) {
  const auto refuse = [&](const std::string& what) { throw_error(ExitCode::kBadInput, source, what); };
  if (d.v_heads % d.k_heads != 0)
    refuse(str("linear_num_value_heads ", d.v_heads, " is not a multiple of linear_num_key_heads ", d.k_heads));
  const auto check_dim = [&](const char* key, int64_t dim, int64_t most) {
    if (dim > most || dim % kStateDimUnit != 0)
      refuse(str(key, " ", dim, " is not a multiple of ", kStateDimUnit, " up to ", most,
                 ", which recurrent states are computed with"));
  };
  check_dim("linear_key_head_dim", d.k_dim, kMaxStateKeyDim);
  check_dim("linear_value_head_dim", d.v_dim, kMaxStateDim);
  if (d.k_width() > kMaxWidth)
    refuse(str("linear_num_key_heads ", d.k_heads, " x linear_key_head_dim ", d.k_dim, " is above ", kMaxWidth));
  if (d.v_width() > kMaxWidth)
    refuse(str("linear_num_value_heads ", d.v_heads, " x linear_value_head_dim ", d.v_dim, " is above ", kMaxWidth));
}

// The rows that a layer reads must be of its own kind.
void check_shared_rows(const ModelConfig& config, const std::string& source) {
  for (int64_t i = 0; i < config.layer_count(); ++i) {
    const LayerSpec& layer = config.layer(i);
    if (!layer.has_attention() || layer.keeps_rows()) continue;
    const AttentionSpec& a = layer.attention();
    CHECK(a.rows_of < i && config.layer(a.rows_of).keeps_rows() && !a.qkv_bias && !a.gated_output && !a.k_is_v);
    const AttentionSpec& from = config.layer(a.rows_of).attention();
    CHECK(from.window == a.window && from.local_rope == a.local_rope);
    if (from.kv_heads == a.kv_heads && from.head_dim == a.head_dim) continue;
    throw_error(ExitCode::kBadInput, source,
                str("layer ", i, " has ", a.kv_heads, " KV heads of ", a.head_dim, ", but layer ", a.rows_of,
                    ", whose rows it reads, has ", from.kv_heads, " of ", from.head_dim));
  }
}

void check_config(const ModelConfig& config, const std::string& source) {
  const auto refuse = [&](const std::string& what) { throw_error(ExitCode::kBadInput, source, what); };
  bool attends = false, sees_all = false;
  for (const LayerSpec& layer : config.layers) {
    if (layer.has_attention()) {
      check_attention(layer.attention(), layer.attention().local_rope ? *config.local_rope : config.rope, source);
    } else {
      check_delta_net(layer.delta_net(), source);
    }
    attends = attends || layer.has_attention();
    sees_all = sees_all || (layer.has_attention() && layer.attention().window == 0);
  }
  check_shared_rows(config, source);
  if (!attends) refuse("has no layer with attention");
  if (!sees_all) refuse("has no layer whose attention sees all tokens: each has a window");
  if (config.mtp) check_attention(config.mtp->layer.attention(), config.rope, source);
  for (const int32_t id : config.end_ids)
    if (id < 0 || id >= config.vocab)
      refuse(str("the end token id ", id, " is not in the vocabulary of ", config.vocab));
}

std::string ffn_text(const FfnSpec& ffn) {
  if (!ffn.experts) return str("FFN ", ffn.width);
  const ExpertsSpec& experts = *ffn.experts;
  const std::string text = str(experts.used, " of ", experts.count, " experts with FFN ", experts.width);
  if (experts.shared) return str(text, " and a shared one with FFN ", ffn.width);
  return ffn.width > 0 ? str("FFN ", ffn.width, " and ", text) : text;
}

std::string layers_text(const ModelConfig& config) {
  const AttentionSpec& attention = config.attention();
  const auto recurrent = std::count_if(config.layers.begin(), config.layers.end(),
                                       [](const LayerSpec& layer) { return !layer.has_attention(); });
  const auto readers = std::count_if(config.layers.begin(), config.layers.end(), [](const LayerSpec& layer) {
    return layer.has_attention() && !layer.keeps_rows();
  });
  int64_t windows = 0;
  const AttentionSpec* window = nullptr;
  for (const LayerSpec& layer : config.layers) {
    if (!layer.has_attention() || layer.attention().window == 0) continue;
    ++windows;
    window = &layer.attention();
  }
  const bool own_heads =
      windows > 0 && (window->kv_heads != attention.kv_heads || window->head_dim != attention.head_dim);
  return str(config.layer_count(), " layers of ", config.hidden, ", ",
             recurrent == 0 ? "" : str(recurrent, " of them recurrent, "),
             windows == 0 ? "" : str(windows, " of them with a window of ", window->window),
             own_heads ? str(" and ", window->kv_heads, " KV heads of ", window->head_dim) : "",
             windows == 0 ? "" : ", ", readers == 0 ? "" : str(readers, " without K and V of their own, "),
             attention.heads, " heads and ", attention.kv_heads, " KV heads of ", attention.head_dim, ", ",
             ffn_text(config.layers.front().ffn));
}

}  // namespace headrace
