// Attention on a GPU, at the shape of Llama-3.1-8B in bf16: 32 heads, 8 KV heads, head_dim 128. One JSON object a line:
// microseconds of a layer, what that is in GB/s of K and V and in TFLOP/s, and how near it comes to what the same GPU
// gave at best in the same run (bench/gpu_bench.h); products are held against mma.sync, which is what the kernels use.
//   attention_gpu_bench [rows]        61,440 if not given
// A call's time: many are enqueued, then waited for, so that launches cost nothing; the median of five such runs.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/gpu_bench.h"
#include "bench/program.h"
#include "cache/layout.h"
#include "kernels/attention.h"
#include "offload/device.h"

namespace headrace {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128, kRow = kHeads * kDim;

class Bench : public bench::GpuBench {
 public:
  explicit Bench(int64_t rows) : GpuBench("attention_gpu_bench"), rows_(rows) {
    const int64_t all = segments_capacity(segments_for(rows));
    kv_ = halves(2 * all * kKvHeads * kDim);
    for (int64_t i = 0; i < segments_for(rows); ++i) {
      const SegmentRange range = segment_range(i);
      const std::byte* k = kv_.data() + 4 * range.begin * kKvHeads * kDim;
      segments_.push_back({k, k + 2 * range.rows * kKvHeads * kDim, static_cast<int32_t>(range.begin),
                           static_cast<int32_t>(std::min(rows, range.end()) - range.begin),
                           static_cast<int32_t>(range.rows)});
    }
  }

  void prefix(int64_t queries);
  void tail(int64_t queries);
  void prefill(int64_t queries);

 private:
  static AttentionShape shape(int64_t queries) {
    return {queries, kHeads, kKvHeads, kDim, kRow, DType::kBF16, DType::kBF16, DType::kBF16, 0.08838835f};
  }
  DeviceBuffer halves(int64_t count) { return normal(count, DType::kBF16); }
  DeviceBuffer floats(int64_t count) { return zeros(count * 4); }
  // `kv_rows`: the rows of K and V that a layer reads.
  void report_layer(const char* name, int64_t queries, double us, int64_t kv_rows, double flops) {
    report({{"bench", name}, {"rows", rows_}, {"queries", queries}}, us,
           {4.0 * static_cast<double>(kv_rows * kKvHeads * kDim), flops}, bench::Multiplier::kMmaSync);
  }

  int64_t rows_;
  DeviceBuffer kv_;
  std::vector<KvSegment> segments_;
};

void Bench::prefix(int64_t queries) {
  const DeviceBuffer q = halves(queries * kRow);
  const DeviceBuffer positions =
      upload(std::vector<int32_t>(static_cast<size_t>(queries), static_cast<int32_t>(rows_ + kTailWindow)));
  const auto states = [&](int64_t count) { return floats(count * queries * kRow); };
  const DeviceBuffer o = states(1), ml = states(1);
  const DeviceBuffer scratch_o = states(kMaxPrefixSegments), scratch_ml = states(1);
  PrefixAttentionParams params{};
  params.shape = shape(queries);
  params.q = q.data();
  params.positions = positions.as<int32_t>();
  params.state = {o.as<float>(), ml.as<float>()};
  params.scratch = {scratch_o.as<float>(), scratch_ml.as<float>()};
  const double us = time(50, [&] {
    params.fresh = true;
    const int64_t count = static_cast<int64_t>(segments_.size());
    for (int64_t first = 0; first < count; first += kMaxPrefixSegments) {
      params.segment_count = std::min(kMaxPrefixSegments, count - first);
      std::copy_n(segments_.begin() + first, params.segment_count, params.segments);
      prefix_attention(params, stream());
      params.fresh = false;
    }
  });
  report_layer("prefix_attention", queries, us, rows_, 4.0 * static_cast<double>(queries * kRow * rows_));
}

void Bench::tail(int64_t queries) {
  constexpr int64_t kRingRows = 1024;
  const DeviceBuffer q = halves(queries * kRow), out = halves(queries * kRow);
  const DeviceBuffer ring_k = halves(kRingRows * kKvHeads * kDim), ring_v = halves(kRingRows * kKvHeads * kDim);
  const DeviceBuffer pass_k = halves(queries * kKvHeads * kDim), pass_v = halves(queries * kKvHeads * kDim);
  // The longest tails; queries are siblings.
  const int32_t position = static_cast<int32_t>(rows_ / kPrefixTile * kPrefixTile + kTailWindow + kPrefixTile - 1);
  const DeviceBuffer numbers = upload(std::vector<int32_t>(static_cast<size_t>(queries + 1), position));
  std::vector<int32_t> own;
  for (int32_t i = 0; i < queries; ++i) own.push_back(i);
  const DeviceBuffer path = upload(own);
  const DeviceBuffer o = floats(queries * kRow), ml = floats(queries * kHeads * 2);
  TailAttentionParams params{};
  params.shape = shape(queries);
  params.q = q.data();
  params.positions = numbers.as<int32_t>();
  params.committed = numbers.as<int32_t>() + queries;
  params.path = path.as<int32_t>();
  params.ring_k = ring_k.data();
  params.ring_v = ring_v.data();
  params.pass_k = pass_k.data();
  params.pass_v = pass_v.data();
  params.state = {o.as<float>(), ml.as<float>()};
  params.out = out.data();
  params.path_stride = 1;
  params.ring_rows = kRingRows;
  params.pass_rows = queries;
  clear_state({params.state, queries, kHeads, kDim}, stream());
  const double us = time(100, [&] { tail_attention(params, stream()); });
  report_layer("tail_attention", queries, us, kTailWindow + kPrefixTile,
               4.0 * static_cast<double>(queries * kRow * (kTailWindow + kPrefixTile)));
}

// The last `queries` rows of the prompt.
void Bench::prefill(int64_t queries) {
  const DeviceBuffer q = halves(queries * kRow), out = halves(queries * kRow), list = upload(segments_);
  PrefillAttentionParams params{};
  params.shape = shape(queries);
  params.q = q.data();
  params.segments = list.as<KvSegment>();
  params.out = out.data();
  params.segment_count = static_cast<int64_t>(segments_.size());
  params.first_position = rows_ - queries;
  const double us = time(2, [&] { prefill_attention(params, stream()); });
  const auto seen = static_cast<double>(queries * (params.first_position + rows_ + 1)) / 2;
  report_layer("prefill_attention", queries, us, rows_, 4.0 * kRow * seen);
}

void run(int64_t rows) {
  Bench bench(rows);
  for (int64_t queries : {1, 4, 16, 64, 128}) bench.prefix(queries);
  for (int64_t queries : {1, 64}) bench.tail(queries);
  for (int64_t queries : {rows, std::min<int64_t>(2048, rows)}) bench.prefill(queries);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  return headrace::bench::guarded("attention_gpu_bench", [&] { headrace::run(argc > 1 ? std::atol(argv[1]) : 61440); });
}
