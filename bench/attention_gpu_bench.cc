// Attention on a GPU, at the shape of Llama-3.1-8B in bf16: 32 heads, 8 KV heads, head_dim 128. One JSON object a line:
// microseconds of a layer, and what that is in GB/s of K and V or in TFLOP/s.
//   attention_gpu_bench [rows]        61,440 if not given
// A call's time: many are enqueued, then waited for, so that launches cost nothing; the median of five such runs.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_time.h"
#include "cache/layout.h"
#include "kernels/attention.h"
#include "offload/device.h"

namespace headrace {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128, kRow = kHeads * kDim;

class Bench {
 public:
  explicit Bench(int64_t rows) : rows_(rows) {
    DeviceOptions options;
    options.choice = DeviceChoice::kCuda;
    device_ = open_device(options);
    stream_ = device_->make_stream("bench", StreamRole::kCompute);
    const int64_t all = segments_capacity(segments_for(rows));
    kv_ = normal(2 * all * kKvHeads * kDim);
    for (int64_t i = 0; i < segments_for(rows); ++i) {
      const SegmentRange range = segment_range(i);
      const std::byte* k = kv_.data() + 4 * range.begin * kKvHeads * kDim;
      segments_.push_back({k, k + 2 * range.rows * kKvHeads * kDim, static_cast<int32_t>(range.begin),
                           static_cast<int32_t>(std::min(rows, range.end()) - range.begin),
                           static_cast<int32_t>(range.rows)});
    }
  }

  void read() {
    DeviceBuffer to = device_->allocate(kv_.bytes(), "bench");
    const double us = time(20, [&] { stream_->copy(to.data(), kv_.data(), kv_.bytes(), Link::kWithinDevice); });
    std::printf("{\"bench\": \"copy\", \"us\": %.1f, \"GB/s, read and written\": %.0f}\n", us,
                2 * static_cast<double>(kv_.bytes()) / us * 1e-3);
  }
  void prefix(int64_t queries);
  void tail(int64_t queries);
  void prefill(int64_t queries);

 private:
  static AttentionShape shape(int64_t queries) {
    return {queries, kHeads, kKvHeads, kDim, kRow, DType::kBF16, DType::kBF16, DType::kBF16, 0.08838835f};
  }
  DeviceBuffer normal(int64_t count);
  template <typename T>
  DeviceBuffer upload(const std::vector<T>& values);
  double time(int calls, const std::function<void()>& call);
  void report(const char* name, int64_t queries, double us, double flops) {
    const double bytes = 4.0 * static_cast<double>(rows_ * kKvHeads * kDim);
    std::printf(
        "{\"bench\": \"%s\", \"rows\": %ld, \"queries\": %ld, \"us\": %.1f, \"GB/s\": %.0f, "
        "\"TFLOP/s\": %.1f}\n",
        name, static_cast<long>(rows_), static_cast<long>(queries), us, bytes / us * 1e-3, flops / us * 1e-6);
    std::fflush(stdout);
  }

  int64_t rows_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  DeviceBuffer kv_;
  std::vector<KvSegment> segments_;
};

template <typename T>
DeviceBuffer Bench::upload(const std::vector<T>& values) {
  const uint64_t bytes = values.size() * sizeof(T);
  DeviceBuffer buffer = device_->allocate(bytes, "bench");
  const PinnedBuffer staging = device_->allocate_pinned(bytes, "bench");
  std::memcpy(staging.data(), values.data(), bytes);
  stream_->copy(buffer.data(), staging.data(), bytes, Link::kHostToDevice);
  stream_->synchronize();
  return buffer;
}

// Normal values in bf16, drawn anew for as much as takes no time and then repeated.
DeviceBuffer Bench::normal(int64_t count) {
  constexpr size_t kDrawn = 1000003;
  std::minstd_rand random(1);
  std::normal_distribution<float> values;
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = i < kDrawn ? f32_to_bf16(values(random)).bits : bits[i - kDrawn];
  return upload(bits);
}

double Bench::time(int calls, const std::function<void()>& call) { return bench::median_us(*stream_, calls, call); }

void Bench::prefix(int64_t queries) {
  const DeviceBuffer q = normal(queries * kRow);
  const DeviceBuffer positions =
      upload(std::vector<int32_t>(static_cast<size_t>(queries), static_cast<int32_t>(rows_ + kTailWindow)));
  const auto states = [&](int64_t count) {
    return device_->allocate(static_cast<uint64_t>(count * queries * kRow * 4), "bench");
  };
  const DeviceBuffer o = states(1), ml = states(1);
  const DeviceBuffer scratch_o = states(kMaxPrefixSegments), scratch_ml = states(1);
  PrefixAttentionParams params{};
  params.shape = shape(queries);
  params.q = q.data();
  params.positions = positions.as<int32_t>();
  params.state = {o.as<float>(), ml.as<float>()};
  params.scratch = {scratch_o.as<float>(), scratch_ml.as<float>()};
  const double us = time(50, [&] {
    clear_state({params.state, queries, kHeads, kDim}, *stream_);
    const int64_t count = static_cast<int64_t>(segments_.size());
    for (int64_t first = 0; first < count; first += kMaxPrefixSegments) {
      params.segment_count = std::min(kMaxPrefixSegments, count - first);
      std::copy_n(segments_.begin() + first, params.segment_count, params.segments);
      prefix_attention(params, *stream_);
    }
  });
  report("prefix_attention", queries, us, 4.0 * static_cast<double>(queries * kRow * rows_));
}

void Bench::tail(int64_t queries) {
  constexpr int64_t kRingRows = 1024;
  const DeviceBuffer q = normal(queries * kRow), out = normal(queries * kRow);
  const DeviceBuffer ring_k = normal(kRingRows * kKvHeads * kDim), ring_v = normal(kRingRows * kKvHeads * kDim);
  const DeviceBuffer pass_k = normal(queries * kKvHeads * kDim), pass_v = normal(queries * kKvHeads * kDim);
  // The longest tails; queries are siblings.
  const int32_t position = static_cast<int32_t>(rows_ / kPrefixTile * kPrefixTile + kTailWindow + kPrefixTile - 1);
  const DeviceBuffer numbers = upload(std::vector<int32_t>(static_cast<size_t>(queries + 1), position));
  std::vector<int32_t> own;
  for (int32_t i = 0; i < queries; ++i) own.push_back(i);
  const DeviceBuffer path = upload(own);
  const DeviceBuffer o = device_->allocate(static_cast<uint64_t>(queries * kRow * 4), "bench"),
                     ml = device_->allocate(static_cast<uint64_t>(queries * kHeads * 8), "bench");
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
  clear_state({params.state, queries, kHeads, kDim}, *stream_);
  const double us = time(100, [&] { tail_attention(params, *stream_); });
  report("tail_attention", queries, us, 4.0 * static_cast<double>(queries * kRow * (kTailWindow + kPrefixTile)));
}

// The last `queries` rows of the prompt.
void Bench::prefill(int64_t queries) {
  const DeviceBuffer q = normal(queries * kRow), out = normal(queries * kRow), list = upload(segments_);
  PrefillAttentionParams params{};
  params.shape = shape(queries);
  params.q = q.data();
  params.segments = list.as<KvSegment>();
  params.out = out.data();
  params.segment_count = static_cast<int64_t>(segments_.size());
  params.first_position = rows_ - queries;
  const double us = time(2, [&] { prefill_attention(params, *stream_); });
  const auto seen = static_cast<double>(queries * (params.first_position + rows_ + 1)) / 2;
  report("prefill_attention", queries, us, 4.0 * kRow * seen);
}

void run(int64_t rows) {
  Bench bench(rows);
  bench.read();
  for (int64_t queries : {1, 4, 16, 64, 128}) bench.prefix(queries);
  for (int64_t queries : {1, 64}) bench.tail(queries);
  for (int64_t queries : {rows, std::min<int64_t>(2048, rows)}) bench.prefill(queries);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  try {
    headrace::run(argc > 1 ? std::atol(argv[1]) : 61440);
  } catch (const headrace::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
