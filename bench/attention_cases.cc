// Attention over the parts of a layer's cache: prefill, the prefix in segments, the tail. Products are compared with
// mma.sync, which the kernels use.
#include <algorithm>
#include <cmath>

#include "bench/kernel_bench.h"
#include "cache/layout.h"
#include "kernels/attention/op.h"

namespace headrace::bench {
namespace {

class Attention {
 public:
  Attention(KernelBench& bench, int64_t queries)
      : bench_(bench), queries_(queries), q_(values(queries * bench.q_width())) {}

  void prefill();
  void prefix();
  void tail();

 private:
  DeviceBuffer values(int64_t count) { return bench_.normal(count, bench_.type); }
  DeviceBuffer states(int64_t count) { return bench_.zeros(count * queries_ * bench_.q_width() * 4); }
  AttentionShape shape() const {
    const ModelConfig& c = bench_.shape;
    return {queries_,    c.heads,          c.kv_heads,
            c.head_dim,  bench_.q_width(), bench_.type,
            bench_.type, bench_.type,      static_cast<float>(1 / std::sqrt(real(c.head_dim)))};
  }
  int64_t layer_elements() const { return 2 * segments_capacity(segments_for(bench_.context)) * bench_.kv_width(); }
  // One layer's K and V, in the cache's layout.
  std::vector<KvSegment> segments(const std::byte* layer) const {
    std::vector<KvSegment> list;
    const int64_t row_bytes = bench_.kv_width() * static_cast<int64_t>(bench_.element());
    for (int64_t i = 0; i < segments_for(bench_.context); ++i) {
      const SegmentRange range = segment_range(i);
      const std::byte* const k = layer + 2 * range.begin * row_bytes;
      list.push_back({k, k + range.rows * row_bytes, static_cast<int32_t>(range.begin),
                      static_cast<int32_t>(std::min(bench_.context, range.end()) - range.begin),
                      static_cast<int32_t>(range.rows)});
    }
    return list;
  }
  // `kv_rows`: rows of K and V that are read; `seen`: pairs of a query and a row.
  void measure(const char* name, int64_t kv_rows, double seen, const std::function<void()>& call) {
    bench_.measure({{"bench", name}, {"rows", bench_.context}, {"queries", queries_}},
                   {2 * real(kv_rows * bench_.kv_width()) * real(static_cast<int64_t>(bench_.element())),
                    4 * real(bench_.q_width()) * seen},
                   call, Multiplier::kMmaSync);
  }

  KernelBench& bench_;
  const int64_t queries_;
  const DeviceBuffer q_;
};

// The last `queries` rows of the prompt.
void Attention::prefill() {
  if (queries_ > bench_.context) return;
  const DeviceBuffer kv = values(layer_elements()), list = bench_.upload(segments(kv.data()));
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

void Attention::prefix() {
  ColdCopies layers(bench_, layer_elements(), bench_.type);
  const DeviceBuffer positions = bench_.same(queries_, bench_.context + kTailWindow);
  const DeviceBuffer o = states(1), ml = states(1), scratch_o = states(kMaxPrefixSegments), scratch_ml = states(1);
  PrefixAttentionParams params{};
  params.shape = shape();
  params.q = q_.data();
  params.positions = positions.as<int32_t>();
  params.state = {o.as<float>(), ml.as<float>()};
  params.scratch = {scratch_o.as<float>(), scratch_ml.as<float>()};
  measure("prefix_attention", bench_.context, real(queries_ * bench_.context), [&] {
    const std::vector<KvSegment> list = segments(layers.next());
    const int64_t count = static_cast<int64_t>(list.size());
    params.fresh = true;
    for (int64_t first = 0; first < count; first += kMaxPrefixSegments) {
      params.segment_count = std::min(kMaxPrefixSegments, count - first);
      std::copy_n(list.begin() + first, params.segment_count, params.segments);
      prefix_attention(params, bench_.stream());
      params.fresh = false;
    }
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
  clear_state({state, queries_, bench_.shape.heads, bench_.shape.head_dim}, bench_.stream());
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
                                   .out = out.data(),
                                   .path_stride = 1,
                                   .ring_rows = kRingRows,
                                   .pass_rows = queries_};
  measure("tail_attention", kSeen, real(queries_ * kSeen), [&] { tail_attention(params, bench_.stream()); });
}

}  // namespace

const std::vector<Case> kAttentionCases = {
    {"prefix_attention", [](KernelBench& bench, int64_t rows) { Attention(bench, rows).prefix(); }, 1, 128},
    {"tail_attention", [](KernelBench& bench, int64_t rows) { Attention(bench, rows).tail(); }, 1, 128},
    {"prefill_attention", [](KernelBench& bench, int64_t rows) { Attention(bench, rows).prefill(); }, 512, 1 << 20}};

}  // namespace headrace::bench
