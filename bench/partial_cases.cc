// The kernels of partial verification over the blocks of one layer's cache (summarise, score, select and gather), and
// of refreshes beside an int8 copy. Calls alternate between layers that together exceed any cache.
#include <algorithm>
#include <numeric>
#include <random>

#include "bench/kernel_bench.h"
#include "kernels/blocks/op.h"
#include "kernels/rows/op.h"

namespace headrace::bench {
namespace {

constexpr int64_t kKept = 256, kSinksAndWindow = 20 * kBlockRows;

int64_t blocks_of(const KernelBench& bench) { return (bench.context - kSinksAndWindow) / kBlockRows; }
// Elements of one layer's summaries.
int64_t summaries(const KernelBench& bench, int64_t blocks) { return bench.kv_width() * blocks * 2; }

void summarise(KernelBench& bench, int64_t layers, int64_t ring_rows, int64_t count) {
  const BenchShape& c = bench.shape;
  const int64_t blocks = blocks_of(bench), element = static_cast<int64_t>(bench.element());
  ColdCopies k(bench, layers * bench.kv_width() * ring_rows, bench.type);
  const DeviceBuffer out = bench.zeros(layers * summaries(bench, blocks) * element);
  bench.measure({{"bench", "summarise_blocks"}, {"blocks", count}, {"layers", layers}},
                {real(layers * bench.kv_width() * count * (kBlockRows + 2) * element), 0}, [&] {
                  summarise_blocks({k.next(), out.data(), bench.type, layers, c.kv_heads, c.head_dim, ring_rows, blocks,
                                    bench.kv_width() * ring_rows, count == blocks ? 0 : blocks / 2, count},
                                   bench.stream());
                });
}

void summarise_all(KernelBench& bench, int64_t) {
  summarise(bench, 1, bench.context, blocks_of(bench));  // one layer of a prompt
  for (int64_t blocks : {1, 4}) summarise(bench, bench.shape.layers, 512, blocks);
}

void score(KernelBench& bench, int64_t queries) {
  const BenchShape& c = bench.shape;
  const int64_t blocks = blocks_of(bench), bytes = summaries(bench, blocks) * static_cast<int64_t>(bench.element());
  const DeviceBuffer q = bench.normal(queries * bench.q_width(), bench.type);
  const DeviceBuffer scores = bench.zeros(c.kv_heads * blocks * 4);
  const DeviceBuffer workspace = bench.zeros(score_blocks_workspace_floats(c.kv_heads, c.head_dim) * 4);
  ColdCopies layers(bench, summaries(bench, blocks), bench.type);
  struct Kind {
    const char* name;
    BlockScore score;
    BlockReduce reduce;
  };
  for (const Kind& kind : {Kind{"Quest, mean", BlockScore::kQuest, BlockReduce::kMean},
                           Kind{"Quest, max", BlockScore::kQuest, BlockReduce::kMax},
                           Kind{"SpecPV, mean", BlockScore::kSpecPv, BlockReduce::kMean}}) {
    const bool by_rows = kind.score == BlockScore::kSpecPv || kind.reduce == BlockReduce::kMax;
    const int64_t rows = by_rows ? queries * c.heads / c.kv_heads : 1;  // that multiply every summary
    bench.measure({{"bench", str("score_blocks ", kind.name)}, {"blocks", blocks}, {"queries", queries}},
                  {real(bytes), 2 * real(summaries(bench, blocks)) * real(rows)}, [&] {
                    score_blocks({q.data(), layers.next(), scores.as<float>(), workspace.as<float>(), bench.type,
                                  bench.type, queries, c.heads, c.kv_heads, c.head_dim, bench.q_width(), blocks, 0,
                                  blocks, kind.score, kind.reduce},
                                 bench.stream());
                  });
  }
}

void select(KernelBench& bench, int64_t) {
  if (bench.type != DType::kBF16) return;  // scores are fp32 in every type
  const int64_t heads = bench.shape.kv_heads;
  for (const auto& [blocks, keep] : {std::pair(blocks_of(bench), std::min(kKept, blocks_of(bench))),
                                     {int64_t{16384}, kKept},
                                     {kMaxBlocks, kMaxKeptBlocks}}) {
    const DeviceBuffer scores = bench.normal(heads * blocks, DType::kF32), chosen = bench.zeros(heads * keep * 4);
    const SelectBlocksParams params{scores.as<float>(), chosen.as<int32_t>(), heads, blocks, keep, 0};
    bench.measure({{"bench", "select_blocks"}, {"blocks", blocks}, {"keep", keep}},
                  {real(heads * (blocks + keep) * 4), 0}, [&] { select_blocks(params, bench.stream()); });
  }
}

// One layer in `segments` segments, of which a call has `in_call`. Calls select differently, so that no cache holds it.
void gather(KernelBench& bench, int64_t segments, int64_t in_call) {
  constexpr int64_t kTurns = 8;
  const BenchShape& c = bench.shape;
  const int64_t element = static_cast<int64_t>(bench.element());
  const int64_t rows = bench.context / segments / kPrefixTile * kPrefixTile, elements = bench.kv_width() * rows;
  const int64_t blocks = segments * rows / kBlockRows, kept = std::min(kKept, blocks);
  const DeviceBuffer k = bench.normal(segments * elements, bench.type),
                     v = bench.normal(segments * elements, bench.type);
  const DeviceBuffer k_out = bench.zeros(bench.kv_width() * kept * kBlockRows * element);
  const DeviceBuffer v_out = bench.zeros(static_cast<int64_t>(k_out.bytes()));
  std::mt19937 random(1);
  std::vector<int32_t> all(static_cast<size_t>(blocks)), chosen;
  std::iota(all.begin(), all.end(), 0);
  for (int64_t head = 0; head < kTurns * c.kv_heads; ++head) {
    std::sample(all.begin(), all.end(), std::back_inserter(chosen), kept, random);  // ascending
  }
  const DeviceBuffer list = bench.upload(chosen);
  GatherBlocksParams params{nullptr,    k_out.data(), v_out.data(), bench.type, bench.type,        bench.type,
                            bench.type, c.kv_heads,   c.head_dim,   kept,       kept * kBlockRows, in_call,
                            {}};
  for (int64_t i = 0; i < in_call; ++i) {
    params.segments[i] = {k.data() + i * elements * element, v.data() + i * elements * element,
                          static_cast<int32_t>(i * rows), static_cast<int32_t>(rows), static_cast<int32_t>(rows)};
  }
  const int64_t moved =
      std::count_if(chosen.begin(), chosen.end(), [&](int32_t block) { return block * kBlockRows < in_call * rows; }) /
      kTurns;
  int64_t turn = 0;
  bench.measure({{"bench", "gather_blocks"}, {"segments", in_call}, {"of", segments}, {"blocks", moved}},
                {real(moved * kBlockRows * c.head_dim * element) * 4, 0}, [&] {
                  params.chosen = list.as<int32_t>() + turn++ % kTurns * c.kv_heads * kept;
                  gather_blocks(params, bench.stream());
                });
}

void gathers(KernelBench& bench, int64_t) {
  const int64_t segments = std::clamp<int64_t>(bench.context / 2048, 2, kMaxPrefixSegments);
  gather(bench, segments, segments);
  gather(bench, segments, 2);
}

void windows(KernelBench& bench, int64_t) {
  constexpr int64_t kRing = 512, kOut = 4096;
  const BenchShape& c = bench.shape;
  const int64_t layer_bytes = bench.kv_width() * kOut * static_cast<int64_t>(bench.element());
  const auto stride = static_cast<uint64_t>(layer_bytes);
  const DeviceBuffer k = bench.normal(c.layers * bench.kv_width() * kRing, bench.type);
  const DeviceBuffer v = bench.normal(c.layers * bench.kv_width() * kRing, bench.type);
  const DeviceBuffer k_out = bench.zeros(c.layers * layer_bytes), v_out = bench.zeros(c.layers * layer_bytes);
  for (int64_t rows : {4, 60}) {
    const CopyWindowParams params{k.data(), v.data(),   k_out.data(), v_out.data(), bench.type, bench.type,
                                  c.layers, c.kv_heads, c.head_dim,   kRing,        kOut,       stride,
                                  stride,   60000,      60100,        rows};
    bench.measure({{"bench", "copy_window"}, {"rows", rows}, {"layers", c.layers}},
                  {4 * real(c.layers * bench.kv_width() * rows) * real(static_cast<int64_t>(bench.element())), 0},
                  [&] { copy_window(params, bench.stream()); });
  }
}

// What int8 rows lack of bf16 rows, in segments of 2,048 rows; one and four a call are decoded. The bytes are those of
// the values that were measured, normal ones.
void remainders(KernelBench& bench, int64_t) {
  constexpr int64_t kRows = 2048, kSegments = 16, kCalls = 4096;
  if (bench.type != DType::kBF16) return;
  const BenchShape& c = bench.shape;
  const int64_t plane = bench.kv_width() * kRows;
  const int64_t stored_plane = c.kv_heads * kRows * static_cast<int64_t>(row_bytes(DType::kInt8, c.head_dim));
  const auto values = static_cast<uint64_t>(2 * plane);
  const int64_t all_bytes = static_cast<int64_t>(round_up(remainder_bytes(values, remainder_room(values)), 16));
  const DeviceBuffer exact = bench.normal(kSegments * 2 * plane, DType::kBF16);
  const DeviceBuffer stored = bench.zeros(kSegments * 2 * stored_plane);
  const DeviceBuffer made = bench.zeros(kSegments * 4 * plane), pieces = bench.zeros(kSegments * all_bytes);
  const DeviceBuffer words = bench.zeros(kCalls * 4);
  const auto view = [&](const DeviceBuffer& buffer, int64_t plane_bytes, int64_t i) -> KvSegment {
    const std::byte* const k = buffer.data() + 2 * i * plane_bytes;
    return {.k = k, .v = k + plane_bytes, .position = 0, .rows = kRows, .stride_rows = kRows};
  };
  const auto exact_at = [&](const DeviceBuffer& buffer, int64_t i) { return view(buffer, 2 * plane, i); };
  const auto stored_at = [&](int64_t i) { return view(stored, stored_plane, i); };
  for (int64_t i = 0; i < kSegments; ++i) {
    quantise_rows({exact_at(exact, i), stored_at(i), DType::kBF16, DType::kBF16, DType::kInt8, DType::kInt8, c.kv_heads,
                   c.head_dim, 0, kRows},
                  bench.stream());
  }
  int64_t turn = 0;
  const auto encode = [&] {
    const int64_t i = turn++ % kSegments;
    encode_remainders({exact_at(exact, i), stored_at(i), pieces.data() + i * all_bytes,
                       words.as<uint32_t>() + turn % kCalls, c.kv_heads, c.head_dim},
                      bench.stream());
  };
  for (int64_t i = 0; i < kSegments; ++i) encode();
  uint32_t taken = 0;
  bench.stream().copy(&taken, words.as<uint32_t>() + 1, sizeof taken, Link::kDeviceToHost);
  bench.stream().synchronize();
  const double one = real(plane * 6) + 4 * real(taken);  // int8 and bf16 of K and V, and the pieces
  bench.measure({{"bench", "encode_remainders"}, {"bits_a_value", 32 * real(taken) / real(2 * plane)}}, {one, 0},
                encode);
  for (const int64_t count : {1, 4}) {
    bench.measure({{"bench", "decode_remainders"}, {"segments", count}}, {one * real(count), 0}, [&] {
      DecodeRemaindersParams params{};
      params.kv_heads = c.kv_heads;
      params.head_dim = c.head_dim;
      for (; params.count < count; ++params.count) {
        const int64_t i = turn++ % kSegments;
        params.segments[params.count] = {pieces.data() + i * all_bytes, stored_at(i), exact_at(made, i)};
      }
      decode_remainders(params, bench.stream());
    });
  }
}

}  // namespace

const std::vector<Case> kPartialCases = {
    {"summarise_blocks", summarise_all, 0, 0}, {"score_blocks", score, 1, 64}, {"select_blocks", select, 0, 0},
    {"gather_blocks", gathers, 0, 0},          {"copy_window", windows, 0, 0}, {"remainders", remainders, 0, 0}};

}  // namespace headrace::bench
