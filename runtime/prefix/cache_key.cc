#include "runtime/prefix/cache_key.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "kernels/instruction_set.h"
#include "kernels/product/op.h"
#include "offload/host/checksum.h"
#include "offload/host/machine.h"
#include "offload/host/thread_pool.h"
#include "runtime/base/sha256.h"

namespace headrace {
namespace {

constexpr uint64_t kSliceBytes = 16 * kMiB;

// Writes each value with its size, so that no two lists collide.
class Identity {
 public:
  template <typename T>
  void add(const T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    put({reinterpret_cast<const char*>(&value), sizeof value});
  }
  void put(std::string_view text) {
    const uint64_t bytes = text.size();
    hash_.update({reinterpret_cast<const char*>(&bytes), sizeof bytes});
    hash_.update(text);
  }
  PrefixKey finish() { return hash_.finish(); }

 private:
  Sha256 hash_;
};

std::vector<uint64_t> checksums_of(const ByteRange& range, ThreadPool& pool) {
  std::vector<uint64_t> sums((range.bytes + kSliceBytes - 1) / kSliceBytes);
  pool.parallel_for(static_cast<int64_t>(sums.size()), [&](int64_t i, int) {
    const uint64_t begin = static_cast<uint64_t>(i) * kSliceBytes;
    const std::string bytes = range.source->text(range.begin + begin, std::min(kSliceBytes, range.bytes - begin));
    sums[static_cast<size_t>(i)] = checksum(std::as_bytes(std::span(bytes)));
  });
  return sums;
}

void add_rope(const RopeConfig& rope, Identity* to) {
  for (const double value : {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor, rope.beta_fast,
                             rope.beta_slow, rope.attention_factor, rope.mscale, rope.mscale_all_dim}) {
    to->add(value);
  }
  to->add(rope.scaling);
  to->add(rope.original_max_positions);
  to->add(rope.truncate);
  for (const float factor : rope.frequency_factors) to->add(factor);
  if (rope.turning_dims != 0) to->add(rope.turning_dims);
  if (rope.query_beta == 0) return;  // rows of a layer depend on q of the layers before it
  to->add(rope.query_beta);
  to->add(rope.query_step);
}

// What some models have beside the sizes above: nothing is written of others, whose keys stay as they were.
void add_layers(const ModelConfig& config, Identity* to) {
  const AttentionSpec& attention = config.attention();
  if (attention.rope_dims != 0 || attention.gated_output) {
    to->put("attention");
    to->add(attention.rope_dims);
    to->add(attention.gated_output);
  }
  if (config.local_rope) {
    to->put("windows in snapshots");
    add_rope(*config.local_rope, to);
    to->add(attention.scale);
    for (const LayerSpec& layer : config.layers) to->add(layer.attention().window);
  }
  if (config.shares_rows()) {
    to->put("shared rows");
    for (const LayerSpec& layer : config.layers) to->add(layer.attention().rows_of);
  }
  const bool windows = std::any_of(config.layers.begin(), config.layers.end(), [](const LayerSpec& layer) {
    return layer.has_attention() && layer.attention().window > 0;
  });
  if (windows && !config.local_rope) {
    to->put("windows");
    for (const LayerSpec& layer : config.layers) to->add(layer.attention().window);
  }
  if (const std::optional<ExpertsSpec>& experts = config.layers.front().ffn.experts) {
    to->put("experts");
    for (const int64_t size : {experts->count, experts->used, experts->width}) to->add(size);
    to->add(experts->normalised);
    if (experts->shared) to->put("shared expert");  // its width is the feed-forward part's
  }
  const bool recurrent = std::any_of(config.layers.begin(), config.layers.end(),
                                     [](const LayerSpec& layer) { return !layer.has_attention(); });
  if (!recurrent) return;
  to->put("layers");
  for (const LayerSpec& layer : config.layers) {
    to->add(layer.has_attention());
    if (layer.has_attention()) continue;
    const DeltaNetSpec& delta = layer.delta_net();
    for (const int64_t size : {delta.k_heads, delta.v_heads, delta.k_dim, delta.v_dim, delta.conv}) to->add(size);
    to->add(delta.tiled);
  }
}

// Where the same program may round differently with the same weights.
void add_place(const Device& device, Identity* to) {
  to->add(device.backend());
  if (device.backend() == Backend::kCuda) {
    to->put(device.name());
    to->add(product_library_version(device.backend()));
    return;
  }
  to->put(cpu_instruction_set());
  to->put(read_machine().cpu);  // libm selects its instructions for the RoPE tables by CPU
  to->put(__VERSION__);         // the compiler, which may contract a product and a sum
#ifdef __OPTIMIZE__
  to->put("optimised");
#endif
}

}  // namespace

PrefixKey weights_fingerprint(const TensorSource& source, int threads) {
  ThreadPool pool(threads);
  std::vector<const TensorInfo*> tensors;
  for (const TensorInfo& tensor : source.tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  Identity identity;
  for (const TensorInfo* const tensor : tensors) {
    identity.put(tensor->name);
    identity.put(tensor->stored_type);
    for (const int64_t size : tensor->shape) identity.add(size);
    for (const uint64_t sum : checksums_of(source.stored_range(*tensor), pool)) identity.add(sum);
  }
  return identity.finish();
}

PrefixKey rows_cache_key(const RowsKeyInput& rows, const Device& device) {
  const ModelConfig& c = *rows.config;
  Identity identity;
  identity.add(kNumericsVersion);
  identity.put({reinterpret_cast<const char*>(rows.weights.data()), rows.weights.size()});
  identity.put(c.family);
  const AttentionSpec& a = c.attention();
  for (const int64_t size : {c.layer_count(), c.hidden, a.heads, a.kv_heads, a.head_dim, c.layers.front().ffn.width,
                             c.vocab, c.max_positions, rows.prefill_int8 ? 0 : rows.prefill_group}) {
    identity.add(size);
  }
  identity.add(c.rms_eps);
  for (const bool quirk : {a.qkv_bias, a.output_bias, a.qk_norm}) identity.add(quirk);
  for (const DType type : {rows.dtype, rows.k_type, rows.v_type}) identity.add(type);
  if (rows.quantised) identity.put(weight_type_info(*rows.quantised).name);
  if (rows.prefill_int8) {  // made of the blocks' values, or of values that were rounded first
    identity.put("prefill in int8");
    identity.add(rows.keeps_blocks);
  }
  add_rope(c.rope, &identity);
  add_layers(c, &identity);
  add_place(device, &identity);
  return identity.finish();
}

}  // namespace headrace
