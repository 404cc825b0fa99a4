// Attention over the parts of a layer's cache: prefill, the prefix in segments, the tail, and the scores of chunks.
// Products are compared with mma.sync, which the kernels use.
#include <algorithm>
#include <cmath>

#include "bench/kernel_bench.h"
#include "cache/attention_parts.h"
#include "kernels/attention/op.h"
#include "kernels/chunks/op.h"
#include "kernels/int8_attention/op.h"
#include "kernels/rows/op.h"

namespace headrace::bench {
namespace {

class Attention {
 public:
  Attention(KernelBench& bench, int64_t queries)
      : bench_(bench), queries_(queries), q_(values(queries * bench.q_width())) {}

  void prefill();
  void int8_prefill();
  void prefix();
  void chunks();
  void tail();
  void quantise();

 private:
  DeviceBuffer values(int64_t count) { return bench_.normal(count, bench_.type); }
  DeviceBuffer states(int64_t count) { return bench_.zeros(count * queries_ * bench_.q_width() * 4); }
  AttentionShape shape() const {
    const BenchShape& c = bench_.shape;
    return {queries_,    c.heads,          c.kv_heads,
            c.head_dim,  bench_.q_width(), bench_.type,
            bench_.type, bench_.type,      static_cast<float>(1 / std::sqrt(real(c.head_dim)))};
  }
  int64_t layer_elements() const { return 2 * segments_capacity(segments_for(bench_.context)) * bench_.kv_width(); }
  int64_t row_bytes_of(DType type) const {  // of K, or of V
    return bench_.shape.kv_heads * static_cast<int64_t>(row_bytes(type, bench_.shape.head_dim));
  }
  // One layer's K and V, in the cache's layout.
  std::vector<KvSegment> segments(const std::byte* layer, DType type) const {
    std::vector<KvSegment> list;
    const int64_t row_bytes = row_bytes_of(type);
    for (int64_t i = 0; i < segments_for(bench_.context); ++i) {
      const SegmentRange range = segment_range(i);
      const std::byte* const k = layer + 2 * range.begin * row_bytes;
      const int64_t rows = std::min(bench_.context, range.end()) - range.begin;
      const int64_t part =
          bench_.part_rows > 0 ? bench_.part_rows : attention_part_rows(range.begin, bench_.shape.kv_heads, type, type);
      for (int64_t at = 0; at < rows; at += part) {
        const int64_t skipped = low_bit(type) ? 0 : at * row_bytes / bench_.shape.kv_heads;
        list.push_back({.k = k + skipped,
                        .v = k + range.rows * row_bytes + skipped,
                        .position = static_cast<int32_t>(range.begin + at),
                        .rows = static_cast<int32_t>(std::min(part, rows - at)),
                        .stride_rows = static_cast<int32_t>(range.rows),
                        .first_row = low_bit(type) ? static_cast<int32_t>(at) : 0});
      }
    }
    return list;
  }
  void prefix(DType cache);
  void chunks(DType cache);
  ColdCopies layers_of(DType cache) const {
    // Low-bit rows are numbers of f16: any bytes are values, and the parameters are finite.
    const DType filled = low_bit(cache) ? DType::kF16 : cache;
    const int64_t bytes = 2 * segments_capacity(segments_for(bench_.context)) * row_bytes_of(cache);
    return {bench_, bytes / static_cast<int64_t>(dtype_bytes(filled)), filled, low_bit(cache) ? 0.01f : 1.0f};
  }
  // `kv_rows`: rows of K and V that are read; `seen`: pairs of a query and a row.
  void measure(const char* name, int64_t kv_rows, double seen, const std::function<void()>& call) {
    measure(name, bench_.type, kv_rows, seen, call);
  }
  void measure(const char* name, DType cache, int64_t kv_rows, double seen, const std::function<void()>& call) {
    bench_.measure({{"bench", name}, {"rows", bench_.context}, {"queries", queries_}, {"cache", dtype_name(cache)}},
                   {2 * real(kv_rows) * real(row_bytes_of(cache)), 4 * real(bench_.q_width()) * seen}, call);
  }

  KernelBench& bench_;
  const int64_t queries_;
  const DeviceBuffer q_;
};

// The last `queries` rows of the prompt.
void Attention::prefill() {
  if (queries_ > bench_.context) return;
  const DeviceBuffer kv = values(layer_elements()), list = bench_.upload(segments(kv.data(), bench_.type));
  const DeviceBuffer out = values(queries_ * bench_.q_width());
  const PrefillAttentionParams params{shape(),
                                      q_.data(),
                                      list.as<KvSegment>(),
                                      out.data(),
                                      static_cast<int64_t>(list.bytes() / sizeof(KvSegment)),
                                      bench_.context - queries_};
  measure("prefill_attention", bench_.context, real(queries_ * (params.first_position + bench_.context + 1)) / 2,
          [&] { prefill_attention(params, bench_.stream()); });
}

// The same in 8 bits, and the conversion of the layer's rows, which a layer pays once a prompt.
void Attention::int8_prefill() {
  const int64_t first = bench_.context - queries_;
  if (first < kInt8CentreRows) return;
  const BenchShape& c = bench_.shape;
  const DeviceBuffer kv = values(layer_elements()), list = bench_.upload(segments(kv.data(), bench_.type));
  const DeviceBuffer out = values(queries_ * bench_.q_width());
  const Backend backend = bench_.on_cpu() ? Backend::kCpu : Backend::kCuda;
  const auto bytes = [](uint64_t count) { return static_cast<int64_t>(std::max<uint64_t>(count, 256)); };
  const int64_t whole = bench_.context / kPrefixTile * kPrefixTile;
  const DeviceBuffer converted = bench_.zeros(bytes(int8_kv_bytes(backend, whole, c.kv_heads, c.head_dim)));
  const DeviceBuffer centre = bench_.zeros(bench_.kv_width() * 4);
  const DeviceBuffer workspace = bench_.zeros(bytes(int8_attention_workspace_bytes(backend, shape())));
  const auto count = static_cast<int64_t>(list.bytes() / sizeof(KvSegment));
  const KvSegment* const from = list.as<KvSegment>();
  int8_centre({from, count, bench_.type, c.kv_heads, c.head_dim, centre.as<float>()}, bench_.stream());
  const Int8KvRows rows{.data = converted.data(), .rows = whole};
  const Int8KvParams conversion{from, count, bench_.type, bench_.type, c.kv_heads, c.head_dim, centre.as<float>(),
                                0,    whole, rows};
  const double moved = real(2 * whole * bench_.kv_width() * static_cast<int64_t>(bench_.element() + 1));
  bench_.measure({{"bench", "int8_kv"}, {"rows", whole}}, {moved, 0}, [&] { int8_kv(conversion, bench_.stream()); });
  const Int8AttentionParams params{shape(),          q_.data(), rows, centre.as<float>(), from, out.data(),
                                   workspace.data(), count,     first};
  // Its operations have another ceiling than those of bf16.
  measure("int8_attention", bench_.context, real(queries_ * (first + bench_.context + 1)) / 2,
          [&] { int8_attention(params, bench_.stream()); });
}

void Attention::prefix() {
  if (bench_.cache_types.empty()) return prefix(bench_.type);
  for (DType cache : bench_.cache_types) prefix(cache);
}

void Attention::prefix(DType cache) {
  ColdCopies layers = layers_of(cache);
  const DeviceBuffer rotated_q = values(queries_ * bench_.q_width());
  const DeviceBuffer positions = bench_.same(queries_, bench_.context + kTailWindow);
  const DeviceBuffer o = states(1), ml = states(1), scratch_o = states(kMaxPrefixParts),
                     scratch_ml = states(kMaxPrefixParts);
  PrefixAttentionParams params{};
  params.shape = shape();
  params.shape.k_type = params.shape.v_type = cache;
  params.q = q_.data();
  params.rotated_q = rotated_q.data();
  params.positions = positions.as<int32_t>();
  params.state = {o.as<float>(), ml.as<float>()};
  params.scratch = {scratch_o.as<float>(), scratch_ml.as<float>()};
  measure("prefix_attention", cache, bench_.context, real(queries_ * bench_.context), [&] {
    const std::vector<KvSegment> list = segments(layers.next(), cache);
    const int64_t count = static_cast<int64_t>(list.size());
    for (int64_t first = 0; first < count; first += kMaxPrefixParts) {
      params.segment_count = std::min(kMaxPrefixParts, count - first);
      std::copy_n(list.begin() + first, params.segment_count, params.segments);
      prefix_attention(params, bench_.stream());
    }
  });
}

void Attention::chunks() {
  if (bench_.cache_types.empty()) return chunks(bench_.type);
  for (DType cache : bench_.cache_types) chunks(cache);
}

// Chunks of a layer scored by one query, whose K is read once.
void Attention::chunks(DType cache) {
  constexpr int64_t kRows = 32;
  const BenchShape& c = bench_.shape;
  const int64_t chunks = ceil_div(bench_.context, kRows);
  ColdCopies layers = layers_of(cache);
  const DeviceBuffer scores = bench_.zeros(chunks * 4);
  const DeviceBuffer workspace =
      bench_.zeros(static_cast<int64_t>(score_chunks_workspace_bytes(c.heads, c.head_dim, chunks)));
  ScoreChunksParams params{.q = q_.data(),
                           .segments = nullptr,
                           .workspace = workspace.data(),
                           .scores = scores.as<float>(),
                           .type = bench_.type,
                           .k_type = cache,
                           .segment_count = 0,
                           .rows = bench_.context,
                           .chunk_rows = kRows,
                           .heads = c.heads,
                           .kv_heads = c.kv_heads,
                           .head_dim = c.head_dim,
                           .scale = shape().scale};
  bench_.measure({{"bench", "score_chunks"}, {"rows", bench_.context}, {"cache", dtype_name(cache)}},
                 {real(bench_.context) * real(row_bytes_of(cache)), 0}, [&] {
                   const std::vector<KvSegment> list = segments(layers.next(), cache);
                   params.segments = list.data();
                   params.segment_count = static_cast<int64_t>(list.size());
                   score_chunks(params, bench_.stream());
                 });
}

// The longest tails; the queries are siblings.
void Attention::tail() {
  constexpr int64_t kRingRows = 1024, kSeen = kTailWindow + kPrefixTile;
  const int64_t position = bench_.context / kPrefixTile * kPrefixTile + kSeen - 1;
  const DeviceBuffer ring_k = values(kRingRows * bench_.kv_width()), ring_v = values(kRingRows * bench_.kv_width());
  const DeviceBuffer pass_k = values(queries_ * bench_.kv_width()), pass_v = values(queries_ * bench_.kv_width());
  const DeviceBuffer out = values(queries_ * bench_.q_width()), path = bench_.ascending(queries_);
  const DeviceBuffer positions = bench_.same(queries_, position), committed = bench_.same(1, position);
  const DeviceBuffer o = states(1), ml = states(1);
  const AttentionState state{o.as<float>(), ml.as<float>()};
  const TailAttentionParams params{.shape = shape(),
                                   .q = q_.data(),
                                   .positions = positions.as<int32_t>(),
                                   .committed = committed.as<int32_t>(),
                                   .path = path.as<int32_t>(),
                                   .ring_k = ring_k.data(),
                                   .ring_v = ring_v.data(),
                                   .pass_k = pass_k.data(),
                                   .pass_v = pass_v.data(),
                                   .state = state,
                                   .path_stride = 1,
                                   .ring_rows = kRingRows,
                                   .pass_rows = queries_};
  PrefixAttentionParams end{};  // without a prefix
  end.shape = params.shape;
  end.q = params.q;
  end.positions = params.positions;
  end.state = state;
  end.out = out.data();
  measure("tail_attention", kSeen, real(queries_ * kSeen), [&] {
    tail_attention(params, bench_.stream());
    prefix_attention(end, bench_.stream());
  });
}

// A prefill group's rows, as prefill quantises them.
void Attention::quantise() {
  const BenchShape& c = bench_.shape;
  const int64_t elements = queries_ * bench_.kv_width();
  const DeviceBuffer k = values(elements), v = values(elements);
  const DeviceBuffer to_k = bench_.zeros(queries_ * row_bytes_of(DType::kInt8)),
                     to_v = bench_.zeros(static_cast<int64_t>(to_k.bytes()));
  const auto rows = static_cast<int32_t>(queries_);
  const RowsParams params{{k.data(), v.data(), 0, rows, rows},
                          {to_k.data(), to_v.data(), 0, rows, rows},
                          bench_.type,
                          bench_.type,
                          DType::kInt8,
                          DType::kInt8,
                          c.kv_heads,
                          c.head_dim,
                          0,
                          queries_,
                          true};
  bench_.measure({{"bench", "quantise_rows"}, {"rows", queries_}},
                 {2 * real(elements) * real(static_cast<int64_t>(bench_.element())) * 2 +
                      2 * real(queries_ * row_bytes_of(DType::kInt8)),
                  0},
                 [&] { quantise_rows(params, bench_.stream()); });
}

}  // namespace

const std::vector<Case> kAttentionCases = {
    {"quantise_rows", [](KernelBench& bench, int64_t rows) { Attention(bench, rows).quantise(); }, 64, 8192},
    {"prefix_attention", [](KernelBench& bench, int64_t rows) { Attention(bench, rows).prefix(); }, 1, 384},
    {"score_chunks", [](KernelBench& bench, int64_t) { Attention(bench, 1).chunks(); }, 0, 0},
    {"tail_attention", [](KernelBench& bench, int64_t rows) { Attention(bench, rows).tail(); }, 1, 128},
    {"prefill_attention", [](KernelBench& bench, int64_t rows) { Attention(bench, rows).prefill(); }, 512, 1 << 20},
    {"int8_attention", [](KernelBench& bench, int64_t rows) { Attention(bench, rows).int8_prefill(); }, 256, 1 << 20}};

}  // namespace headrace::bench
