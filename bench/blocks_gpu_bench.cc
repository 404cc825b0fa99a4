// The kernels of partial verification on a GPU, at 61,440 tokens of Llama-3.1-8B's cache in bf16: one layer's blocks
// summarised, scored, chosen and gathered. One JSON object a line (bench/gpu_bench.h).
//   blocks_gpu_bench
// Calls take turns over layers that together are larger than the second-level cache.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_bench.h"
#include "bench/program.h"
#include "kernels/blocks.h"
#include "offload/device.h"

namespace headrace {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128, kLayers = 32;
constexpr int64_t kBlocks = 3820;  // of 61,440 tokens, without sink and window
constexpr int64_t kRows = 61440, kKept = 256;
constexpr int64_t kSummaryBytes = kKvHeads * kBlocks * 2 * kDim * 2, kKeyBytes = kKvHeads * kRows * kDim * 2;

class Bench : public bench::GpuBench {
 public:
  Bench() : GpuBench("blocks_gpu_bench") {}

  void summarise_layer();
  void summarise_few(int64_t blocks);
  void score_with(const char* name, BlockScore score, BlockReduce reduce, int64_t queries);
  void select_from(int64_t blocks, int64_t keep);
  void gather_from(int64_t segments, int64_t in_call);
  void window(int64_t rows);
};

void Bench::summarise_layer() {
  constexpr int64_t kCopies = 3;
  const DeviceBuffer k = normal(kCopies * kKvHeads * kRows * kDim, DType::kBF16), out = zeros(kSummaryBytes);
  int64_t turn = 0;
  const double us = time(100, [&] {
    summarise_blocks({k.data() + turn++ % kCopies * kKeyBytes, out.data(), DType::kBF16, 1, kKvHeads, kDim, kRows,
                      kBlocks, 0, 0, kBlocks},
                     stream());
  });
  report({{"bench", "summarise_blocks"}, {"blocks", kBlocks}, {"layers", 1}}, us,
         {static_cast<double>(kSummaryBytes) * (1.0 + kBlockRows / 2.0), 0});
}

void Bench::summarise_few(int64_t blocks) {
  constexpr int64_t kRing = 512;
  const DeviceBuffer k = normal(kLayers * kKvHeads * kRing * kDim, DType::kBF16), out = zeros(kLayers * kSummaryBytes);
  const double us = time(200, [&] {
    summarise_blocks({k.data(), out.data(), DType::kBF16, kLayers, kKvHeads, kDim, kRing, kBlocks,
                      kKvHeads * kRing * kDim, 3000, blocks},
                     stream());
  });
  report({{"bench", "summarise_blocks"}, {"blocks", blocks}, {"layers", kLayers}}, us,
         {static_cast<double>(kLayers * kKvHeads * blocks * (kBlockRows + 2) * kDim * 2), 0});
}

void Bench::score_with(const char* name, BlockScore score, BlockReduce reduce, int64_t queries) {
  const DeviceBuffer q = normal(queries * kHeads * kDim, DType::kBF16);
  const DeviceBuffer summaries = normal(kLayers * kSummaryBytes / 2, DType::kBF16);
  const DeviceBuffer scores = zeros(kKvHeads * kBlocks * 4);
  const DeviceBuffer workspace = zeros(score_blocks_workspace_floats(kKvHeads, kDim) * 4);
  int64_t turn = 0;
  const double us = time(64, [&] {
    score_blocks({q.data(), summaries.data() + turn++ % kLayers * kSummaryBytes, scores.as<float>(),
                  workspace.as<float>(), DType::kBF16, DType::kBF16, queries, kHeads, kKvHeads, kDim, kHeads * kDim,
                  kBlocks, 0, kBlocks, score, reduce},
                 stream());
  });
  const bool by_rows = score == BlockScore::kSpecPv || reduce == BlockReduce::kMax;
  const int64_t rows = by_rows ? queries * kHeads / kKvHeads : 1;  // that every summary is multiplied with
  report({{"bench", str("score_blocks ", name)}, {"blocks", kBlocks}, {"queries", queries}}, us,
         {static_cast<double>(kSummaryBytes), static_cast<double>(kSummaryBytes) * static_cast<double>(rows)});
}

void Bench::select_from(int64_t blocks, int64_t keep) {
  const DeviceBuffer scores = normal(kKvHeads * blocks, DType::kF32), chosen = zeros(kKvHeads * keep * 4);
  const double us = time(200, [&] {
    select_blocks({scores.as<float>(), chosen.as<int32_t>(), kKvHeads, blocks, keep, 0}, stream());
  });
  report({{"bench", "select_blocks"}, {"blocks", blocks}, {"keep", keep}}, us,
         {static_cast<double>(kKvHeads * (blocks + keep) * 4), 0});
}

// One layer in `segments` segments, of which a call has `in_call`. Turns choose differently, so that no cache holds it.
void Bench::gather_from(int64_t segments, int64_t in_call) {
  constexpr int64_t kTurns = 8;
  const int64_t rows = kRows / segments / kPrefixTile * kPrefixTile, bytes = kKvHeads * rows * kDim * 2;
  const DeviceBuffer k = normal(segments * bytes / 2, DType::kBF16), v = normal(segments * bytes / 2, DType::kBF16);
  const DeviceBuffer k_out = zeros(kKvHeads * kKept * kBlockRows * kDim * 2),
                     v_out = zeros(static_cast<int64_t>(k_out.bytes()));
  std::mt19937 random(1);
  std::vector<int32_t> all(static_cast<size_t>(segments * rows / kBlockRows)), chosen;
  std::iota(all.begin(), all.end(), 0);
  for (int64_t head = 0; head < kTurns * kKvHeads; ++head) {
    std::shuffle(all.begin(), all.end(), random);
    std::vector<int32_t> best(all.begin(), all.begin() + kKept);
    std::sort(best.begin(), best.end());
    chosen.insert(chosen.end(), best.begin(), best.end());
  }
  const DeviceBuffer list = upload(chosen);
  GatherBlocksParams params{list.as<int32_t>(),
                            k_out.data(),
                            v_out.data(),
                            DType::kBF16,
                            DType::kBF16,
                            kKvHeads,
                            kDim,
                            kKept,
                            kKept * kBlockRows,
                            in_call,
                            {}};
  for (int64_t i = 0; i < in_call; ++i) {
    params.segments[i] = {k.data() + i * bytes, v.data() + i * bytes, static_cast<int32_t>(i * rows),
                          static_cast<int32_t>(rows), static_cast<int32_t>(rows)};
  }
  const auto in_call_of_all =
      std::count_if(chosen.begin(), chosen.end(), [&](int32_t block) { return block * kBlockRows < in_call * rows; });
  const int64_t moved = in_call_of_all / kTurns;
  int64_t turn = 0;
  const double us = time(200, [&] {
    params.chosen = list.as<int32_t>() + turn++ % kTurns * kKvHeads * kKept;
    gather_blocks(params, stream());
  });
  report({{"bench", "gather_blocks"}, {"segments", in_call}, {"of", segments}, {"blocks", moved}}, us,
         {static_cast<double>(moved * kBlockRows * kDim) * 2 * 2 * 2, 0});
}

void Bench::window(int64_t rows) {
  constexpr int64_t kRing = 512, kOut = 4096;
  const int64_t ring = kLayers * kKvHeads * kRing * kDim, layer_bytes = kKvHeads * kOut * kDim * 2;
  const DeviceBuffer k = normal(ring, DType::kBF16), v = normal(ring, DType::kBF16);
  const DeviceBuffer k_out = zeros(kLayers * layer_bytes), v_out = zeros(kLayers * layer_bytes);
  const auto stride = static_cast<uint64_t>(layer_bytes);
  const CopyWindowParams params{k.data(), v.data(), k_out.data(), v_out.data(), DType::kBF16, DType::kBF16,
                                kLayers,  kKvHeads, kDim,         kRing,        kOut,         stride,
                                stride,   60000,    60100,        rows};
  report({{"bench", "copy_window"}, {"rows", rows}, {"layers", kLayers}},
         time(200, [&] { copy_window(params, stream()); }),
         {static_cast<double>(kLayers * kKvHeads * rows * kDim) * 2 * 2 * 2, 0});
}

void run() {
  Bench bench;
  bench.summarise_layer();
  for (int64_t blocks : {1, 4}) bench.summarise_few(blocks);
  bench.score_with("Quest, mean", BlockScore::kQuest, BlockReduce::kMean, 1);
  bench.score_with("Quest, mean", BlockScore::kQuest, BlockReduce::kMean, 64);
  bench.score_with("Quest, max", BlockScore::kQuest, BlockReduce::kMax, 64);
  bench.score_with("SpecPV, mean", BlockScore::kSpecPv, BlockReduce::kMean, 1);
  bench.score_with("SpecPV, mean", BlockScore::kSpecPv, BlockReduce::kMean, 64);
  bench.select_from(kBlocks, kKept);
  bench.select_from(16384, kKept);
  bench.select_from(kMaxBlocks, kMaxKeptBlocks);
  bench.gather_from(30, 30);
  bench.gather_from(30, 2);
  for (int64_t rows : {4, 60}) bench.window(rows);
}

}  // namespace
}  // namespace headrace

int main() {
  return headrace::bench::guarded("blocks_gpu_bench", [] { headrace::run(); });
}
