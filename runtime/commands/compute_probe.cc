#include "runtime/commands/compute_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "cache/layout.h"
#include "kernels/attention/op.h"
#include "kernels/elementwise/op.h"
#include "kernels/int8/op.h"
#include "kernels/int8_attention/op.h"
#include "kernels/product/op.h"
#include "offload/host/clock.h"

namespace headrace {
namespace {

// Sizes for a few milliseconds per call on either backend, so that the host's part is negligible.
struct Sizes {
  int64_t n, k;  // of the matrix
  int64_t decode_rows, prefill_rows;
  int64_t heads, kv_heads, head_dim;
  int64_t context;          // rows visible to attention
  int64_t prefill_queries;  // the last ones of the context
};
constexpr Sizes kGpuSizes = {28672, 4096, 1, 2048, 32, 8, 128, 61440, 2048};
constexpr Sizes kCpuSizes = {4096, 2048, 1, 256, 16, 4, 64, 2048, 256};
constexpr int64_t kQueries = 64;

// Seconds per call: median, minimum and maximum of the rounds.
struct Times {
  double median, least, most;
};

// `work` is per call, in billions or trillions.
ComputeRate rate_of(double work, const Times& times) {
  return {.value = work / times.median, .low = work / times.most, .high = work / times.least};
}

class ComputeProbe {
 public:
  ComputeProbe(Device& device, bool quick)
      : device_(device),
        gpu_(device.backend() == Backend::kCuda),
        rounds_(quick ? 3 : 7),
        stream_(device.make_stream("measuring", StreamRole::kCompute)) {}

  ComputeRates run() {
    ComputeRates rates;
    measure_products(&rates);
    measure_attention(&rates);
    return rates;
  }

 private:
  const Sizes& sizes() const { return gpu_ ? kGpuSizes : kCpuSizes; }
  // Numbers between -1/2 and 1/2, in a short repeated sequence: zeros would be unrealistically cheap.
  DeviceBuffer made_up(int64_t elements);
  // Short calls are timed several at a time.
  Times measure(const std::function<void()>& call);
  void measure_products(ComputeRates* rates);
  void measure_attention(ComputeRates* rates);
  struct Rows;
  Rows make_rows();
  Times prefill_times(const Rows& rows);
  Times prefix_times(Rows& rows, int64_t queries, int64_t segments);
  Times product_times(ProductPath path, int64_t rows);
  Times int8_product_times(int64_t rows);
  Times int8_attention_times(const Rows& rows);
  std::vector<KvSegment> segments_of(const DeviceBuffer& kv, int64_t rows) const;
  AttentionShape attention_shape(int64_t queries) const;

  Device& device_;
  const bool gpu_;
  const int rounds_;
  const std::unique_ptr<Stream> stream_;
};

DeviceBuffer ComputeProbe::made_up(int64_t elements) {
  constexpr size_t kRun = 1 << 20;
  const uint64_t bytes = static_cast<uint64_t>(elements) * 2;
  DeviceBuffer buffer = device_.allocate(bytes, "measuring the compute");
  const PinnedBuffer host = device_.allocate_pinned(std::min<uint64_t>(bytes, 2 * kRun), "measuring the compute");
  uint32_t state = 12345;
  for (size_t i = 0; i < host.bytes() / 2; ++i) {
    state = state * 1664525u + 1013904223u;
    host.as<uint16_t>()[i] = f32_to_bf16(static_cast<float>(state >> 8) / static_cast<float>(1 << 24) - 0.5f).bits;
  }
  for (uint64_t at = 0; at < bytes; at += host.bytes()) {
    stream_->copy(buffer.data() + at, host.data(), std::min(host.bytes(), bytes - at), Link::kHostToDevice);
  }
  stream_->synchronize();
  return buffer;
}

Times ComputeProbe::measure(const std::function<void()>& call) {
  const auto timed = [&](int calls) {
    const HostClock::time_point start = HostClock::now();
    for (int i = 0; i < calls; ++i) call();
    stream_->synchronize();
    return seconds_since(start) / calls;
  };
  timed(1);  // one-time work of a kernel's first call
  const int calls = std::clamp(static_cast<int>(2e-3 / timed(1)), 1, 64);
  std::vector<double> times;
  for (int round = 0; round < rounds_; ++round) times.push_back(timed(calls));
  std::sort(times.begin(), times.end());
  return {.median = times[times.size() / 2], .least = times.front(), .most = times.back()};
}

// Alternates between matrices, so that no cache holds them from call to call.
Times ComputeProbe::product_times(ProductPath path, int64_t rows) {
  const Sizes& s = sizes();
  constexpr int kMatrices = 3;
  const int64_t padded = padded_rows(rows);
  const DeviceBuffer w = made_up(kMatrices * s.n * s.k), x = made_up(padded * s.k), out = made_up(padded * s.n);
  int turn = 0;
  return measure([&] {
    const std::byte* const matrix = w.data() + static_cast<uint64_t>(turn++ % kMatrices * s.n * s.k) * 2;
    product({.x = x.data(),
             .weight = plain_weight(matrix, DType::kBF16, s.n, s.k),
             .out = out.data(),
             .type = DType::kBF16,
             .out_type = DType::kBF16,
             .rows = rows,
             .n = s.n,
             .k = s.k,
             .path = path},
            *stream_);
  });
}

void ComputeProbe::measure_products(ComputeRates* rates) {
  const Sizes& s = sizes();
  const double elements = static_cast<double>(s.n * s.k);
  rates->weights_gb_per_s = rate_of(2e-9 * elements, product_times(ProductPath::kDecode, s.decode_rows));
  rates->product_tflop_per_s = rate_of(2e-12 * elements * static_cast<double>(s.prefill_rows),
                                       product_times(ProductPath::kPrefill, s.prefill_rows));
  rates->int8_product_tflop_per_s =
      rate_of(2e-12 * elements * static_cast<double>(s.prefill_rows), int8_product_times(s.prefill_rows));
}

// Without the conversions: the matrix's is paid once a prompt, the input's is a matter of bytes.
Times ComputeProbe::int8_product_times(int64_t rows) {
  const Sizes& s = sizes();
  const Backend backend = device_.backend();
  const auto int8_rows = [](const DeviceBuffer& buffer, uint64_t values) {
    return Int8Rows{.values = buffer.as<int8_t>(), .scales = reinterpret_cast<float*>(buffer.data() + values)};
  };
  const auto bytes = [&](int64_t n) { return round_up(int8_values_bytes(backend, n, s.k), 256); };
  const auto buffer = [&](int64_t n) {
    return device_.allocate(bytes(n) + static_cast<uint64_t>(n) * sizeof(float), "measuring the compute");
  };
  const DeviceBuffer w = buffer(s.n), x = buffer(rows), out = made_up(rows * s.n);
  {
    const DeviceBuffer plain = made_up(s.n * s.k);
    int8_weight({.weight = plain_weight(plain.data(), DType::kBF16, s.n, s.k),
                 .type = DType::kBF16,
                 .out = int8_rows(w, bytes(s.n))},
                *stream_);
    int8_activation(
        {.x = plain.data(), .type = DType::kBF16, .rows = rows, .cols = s.k, .out = int8_rows(x, bytes(rows))},
        *stream_);
    stream_->synchronize();
  }
  return measure([&] {
    int8_product({.x = int8_rows(x, bytes(rows)),
                  .weight = int8_rows(w, bytes(s.n)),
                  .out = out.data(),
                  .type = DType::kBF16,
                  .rows = rows,
                  .n = s.n,
                  .k = s.k},
                 *stream_);
  });
}

std::vector<KvSegment> ComputeProbe::segments_of(const DeviceBuffer& kv, int64_t rows) const {
  const Sizes& s = sizes();
  const RowShape shape{.layers = 1, .kv_heads = s.kv_heads, .head_dim = s.head_dim};
  std::vector<KvSegment> segments;
  for (int64_t i = 0; i < segments_for(rows); ++i) {
    const SegmentRange range = segment_range(i);
    const std::byte* const k = kv.data() + segments_bytes(shape, 0, i);
    segments.push_back({.k = k,
                        .v = k + static_cast<uint64_t>(range.rows) * shape.k_bytes(),
                        .position = static_cast<int32_t>(range.begin),
                        .rows = static_cast<int32_t>(std::min(range.rows, rows - range.begin)),
                        .stride_rows = static_cast<int32_t>(range.rows)});
  }
  return segments;
}

AttentionShape ComputeProbe::attention_shape(int64_t queries) const {
  const Sizes& s = sizes();
  return {.queries = queries,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .q_stride = s.heads * s.head_dim,
          .type = DType::kBF16,
          .k_type = DType::kBF16,
          .v_type = DType::kBF16,
          .scale = 1 / std::sqrt(static_cast<float>(s.head_dim))};
}

// Alternates between the rows of several layers, so that no cache holds them.
struct ComputeProbe::Rows {
  static constexpr int kLayers = 3;
  RowShape shape;
  uint64_t layer_bytes;
  DeviceBuffer kv, q, out, table, positions, state, scratch;
  std::vector<KvSegment> segments;  // of the first layer
  int turn = 0;

  int64_t count() const { return static_cast<int64_t>(segments.size()); }
};

ComputeProbe::Rows ComputeProbe::make_rows() {
  const Sizes& s = sizes();
  const int64_t most = std::max(s.prefill_queries, kQueries), width = s.heads * s.head_dim;
  const auto buffer = [&](uint64_t bytes) { return device_.allocate(bytes, "measuring the compute"); };
  const auto states = [&](int64_t n) {
    return buffer(static_cast<uint64_t>(n * (width + 2 * s.heads)) * sizeof(float));
  };
  Rows rows;
  rows.shape = {.layers = 1, .kv_heads = s.kv_heads, .head_dim = s.head_dim};
  rows.layer_bytes = segments_bytes(rows.shape, 0, segments_for(s.context));
  rows.kv = made_up(static_cast<int64_t>(Rows::kLayers * rows.layer_bytes / 2));
  rows.q = made_up(most * width);
  rows.out = buffer(static_cast<uint64_t>(most * width) * 2);
  rows.segments = segments_of(rows.kv, s.context);
  rows.state = states(kQueries);
  rows.scratch = states(kQueries * kMaxPrefixParts);
  const uint64_t table_bytes = rows.segments.size() * sizeof(KvSegment), position_bytes = kQueries * sizeof(int32_t);
  rows.table = buffer(table_bytes);
  rows.positions = buffer(position_bytes);
  const PinnedBuffer host = device_.allocate_pinned(table_bytes + position_bytes, "measuring the compute");
  std::memcpy(host.data(), rows.segments.data(), table_bytes);
  auto* const positions = reinterpret_cast<int32_t*>(host.data() + table_bytes);
  std::fill_n(positions, kQueries, static_cast<int32_t>(s.context + kTailWindow + kPrefixTile));  // sees all rows
  stream_->copy(rows.table.data(), host.data(), table_bytes, Link::kHostToDevice);
  stream_->copy(rows.positions.data(), positions, position_bytes, Link::kHostToDevice);
  stream_->synchronize();
  return rows;
}

Times ComputeProbe::prefill_times(const Rows& rows) {
  const Sizes& s = sizes();
  return measure([&] {
    prefill_attention({.shape = attention_shape(s.prefill_queries),
                       .q = rows.q.data(),
                       .segments = rows.table.as<KvSegment>(),
                       .out = rows.out.data(),
                       .segment_count = rows.count(),
                       .first_position = s.context - s.prefill_queries},
                      *stream_);
  });
}

// Without the conversion of K and V, which a layer pays once a prompt.
Times ComputeProbe::int8_attention_times(const Rows& rows) {
  const Sizes& s = sizes();
  const Backend backend = device_.backend();
  const AttentionShape shape = attention_shape(s.prefill_queries);
  const auto buffer = [&](uint64_t bytes) { return device_.allocate(bytes, "measuring the compute"); };
  const DeviceBuffer converted = buffer(int8_kv_bytes(backend, s.context, s.kv_heads, s.head_dim)),
                     centre = buffer(static_cast<uint64_t>(s.kv_heads * s.head_dim) * sizeof(float)),
                     workspace = buffer(int8_attention_workspace_bytes(backend, shape));
  const KvSegment* const segments = rows.table.as<KvSegment>();
  const Int8KvRows kv{.data = converted.data(), .rows = s.context};
  int8_centre({.segments = segments,
               .segment_count = rows.count(),
               .k_type = DType::kBF16,
               .kv_heads = s.kv_heads,
               .head_dim = s.head_dim,
               .centre = centre.as<float>()},
              *stream_);
  int8_kv({.segments = segments,
           .segment_count = rows.count(),
           .k_type = DType::kBF16,
           .v_type = DType::kBF16,
           .kv_heads = s.kv_heads,
           .head_dim = s.head_dim,
           .centre = centre.as<float>(),
           .first = 0,
           .end = s.context,
           .out = kv},
          *stream_);
  return measure([&] {
    int8_attention({.shape = shape,
                    .q = rows.q.data(),
                    .kv = kv,
                    .centre = centre.as<float>(),
                    .segments = segments,
                    .out = rows.out.data(),
                    .workspace = workspace.data(),
                    .segment_count = rows.count(),
                    .first_position = s.context - s.prefill_queries},
                   *stream_);
  });
}

Times ComputeProbe::prefix_times(Rows& rows, int64_t queries, int64_t segments) {
  const int64_t width = sizes().heads * sizes().head_dim;
  const auto view = [&](const DeviceBuffer& b, int64_t n) {
    return AttentionState{.o = b.as<float>(), .ml = b.as<float>() + n * width};
  };
  return measure([&] {
    PrefixAttentionParams params{.shape = attention_shape(queries),
                                 .q = rows.q.data(),
                                 .positions = rows.positions.as<int32_t>(),
                                 .state = view(rows.state, kQueries),
                                 .scratch = view(rows.scratch, kQueries * kMaxPrefixParts),
                                 .segment_count = segments,
                                 .segments = {}};
    const uint64_t layer = static_cast<uint64_t>(rows.turn++ % Rows::kLayers) * rows.layer_bytes;
    for (size_t i = 0; i < static_cast<size_t>(segments); ++i) {
      params.segments[i] = rows.segments[i];
      params.segments[i].k = static_cast<const std::byte*>(rows.segments[i].k) + layer;
      params.segments[i].v = static_cast<const std::byte*>(rows.segments[i].v) + layer;
    }
    prefix_attention(params, *stream_);
  });
}

void ComputeProbe::measure_attention(ComputeRates* rates) {
  const Sizes& s = sizes();
  Rows rows = make_rows();
  const double width = static_cast<double>(s.heads * s.head_dim), context = static_cast<double>(s.context);
  const double queries = static_cast<double>(s.prefill_queries);
  const double prefill_flop = 4 * width * queries * (context - queries / 2);
  rates->attention_tflop_per_s = rate_of(1e-12 * prefill_flop, prefill_times(rows));
  rates->int8_attention_tflop_per_s = rate_of(1e-12 * prefill_flop, int8_attention_times(rows));
  // Times half of the rows and all of them: the difference is the time of the rows alone. The rest is the start and end
  // of the kernels, which a layer's fixed time already includes.
  const int64_t count = rows.count(), half = count / 2;
  const double more = static_cast<double>(segments_bytes(rows.shape, half, count));
  const Times whole = prefix_times(rows, 1, count);
  const double grown = whole.median - prefix_times(rows, 1, half).median;
  const double gb_per_s =
      1e-9 * (grown > 0.1 * whole.median ? more / grown : static_cast<double>(rows.layer_bytes) / whole.median);
  rates->kv_gb_per_s = rate_of(gb_per_s * whole.median, whole);  // with the spread of the whole
  rates->queries_tflop_per_s = rate_of(4e-12 * width * kQueries * context, prefix_times(rows, kQueries, count));
}

}  // namespace

ComputeRates measure_compute(Device& device, bool quick) { return ComputeProbe(device, quick).run(); }

}  // namespace headrace
