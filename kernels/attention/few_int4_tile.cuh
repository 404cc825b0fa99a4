// Flash attention over int4 rows for few rows of q (few_low_bit.cuh). Device code, internal to kernels/attention.
//
// A raw chunk, 16 bytes of a row, is a group of 32 columns: two steps of the products, the lower nibbles and the upper
// ones, and four n-tiles of o, the even and the odd columns of both.
#pragma once

#include "kernels/attention/few_low_bit.cuh"

namespace headrace::kernels::cuda {

// Beside the values are their groups' scales and minima.
template <int kDim, int kHalves>
using FewInt4Memory =
    FewLowBitMemory<kDim, kHalves, kDim / 2, keys_in_tile(kDim) * kDim / static_cast<int>(kInt4Group) * 4, 4, true>;

// kDim: head_dim itself.
template <typename T, int kDim, int kHalves>
struct FewInt4Tile : FewLowBit<T, kDim, kHalves, FewInt4Memory<kDim, kHalves>> {
  using Rows = FewLowBit<T, kDim, kHalves, FewInt4Memory<kDim, kHalves>>;
  using Rows::first_of, Rows::kKeys, Rows::kNTiles, Rows::kPlane, Rows::kRow, Rows::kRows, Rows::kStages;
  using Rows::kThreads, Rows::kWarpKeys, Rows::kWarps, Rows::lane, Rows::limit_of, Rows::parameters_at, Rows::plane;
  using Rows::raw, Rows::rows, Rows::stage, Rows::values_at, Rows::warp;
  using typename Rows::Scores;
  static constexpr int kGroups = Rows::kChunks;            // of a row
  static constexpr int kParameters = kKeys * kGroups * 4;  // bytes of a tile's
  static constexpr int kWarpGroups = kGroups / kWarps;     // a warp's columns of V
  static_assert(kWarpGroups >= 1 && kThreads % kGroups == 0);

  float scale_log2;

  // Of a stage.
  __device__ static uint32_t parameters(int side, int row, int group) {
    return 2 * kPlane + side * kParameters + (row * kGroups + group) * 4;
  }

  // Begins to copy the segment's first tiles, from the one that holds position `seen` on. REQUIRES: a plane has less
  // than 4 GiB.
  __device__ void open(const void* shared_memory, const AttentionShape& of, const KvSegment& from, int kv_head,
                       int seen) {
    Rows::open_rows(shared_memory, of, from, kv_head, seen, kRow, kGroups * 4);
    scale_log2 = __fmul_rn(of.scale, kLog2E);
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);
  }

  // Processes the segment's rows below position `limit`.
  __device__ void walk(int limit) { Rows::walk_tiles(*this, limit); }

  // Stores the states of rows [0, count) of the block; state_of(row) is a row's index in `to`.
  template <typename StateOf>
  __device__ void store(int count, const AttentionState& to, const StateOf& state_of) const {
    Rows::store_rows(
        count, scale_log2, [](float sum) { return sum; }, to, state_of);
  }

  // ---- For walk_tiles()

  __device__ void fetch(int tile) {
    constexpr int kRowsAtOnce = kThreads / kGroups, kPieces = kGroups / 4;  // pieces: of a row's parameters
    const int chunk = threadIdx.x % kGroups, first = threadIdx.x / kGroups;
    const int left = rows - tile * kKeys;
    const uint32_t to = stage(tile);
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const unsigned char* const from = plane(side);
#pragma unroll
      for (int i = 0; i < kKeys / kRowsAtOnce; ++i) {
        const int row = first + i * kRowsAtOnce;
        copy_async(to + raw(side, row, chunk),
                   row < left ? from + (values_at + (tile * kKeys + row) * kRow + chunk * 16) : from,
                   row < left ? 16 : 0);
      }
      if (threadIdx.x < kKeys * kPieces) {
        const int row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
        copy_async(to + parameters(side, row, piece * 4),
                   row < left ? from + (parameters_at + ((tile * kKeys + row) * kGroups + piece * 4) * 4) : from,
                   row < left ? 16 : 0);
      }
    }
    commit_copies();
  }

  // s = q k^T for the warp's keys, unscaled.
  __device__ void score(int, uint32_t from, Scores& s) const {
    Rows::clear(s);
    constexpr int kAtOnce = 4 / kNTiles;  // groups of a load, which has four times 8 keys
    const int row = warp() * kWarpKeys + lane() % kWarpKeys, own = warp() * kWarpKeys + lane() / 4;
#pragma unroll
    for (int first = 0; first < kGroups; first += kAtOnce) {
      uint32_t words[4];  // of each group: keys 0 to 7, 8 to 15
      load_matrices(words, from + raw(0, row, first + lane() / kWarpKeys));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        uint32_t low[kNTiles][2], high[kNTiles][2];
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
          const float2 group = group_of(load_word(from + parameters(0, own + n * 8, first + i)));
          const uint32_t word = words[i * kNTiles + n], upper = word >> 4;
          low[n][0] = widen<kEvenTwo>(word, group, group), low[n][1] = widen<kOddTwo>(word, group, group);
          high[n][0] = widen<kEvenTwo>(upper, group, group), high[n][1] = widen<kOddTwo>(upper, group, group);
        }
        Rows::multiply_step(2 * (first + i), low, s);
        Rows::multiply_step(2 * (first + i) + 1, high, s);
      }
    }
  }

  __device__ void weigh(int tile, Scores& s) {
    Rows::weigh(
        tile, scale_log2, [](int, float weight) { return weight; }, s);
  }

  // o += weights v for the warp's columns.
  __device__ void add(uint32_t from, int at) {
#pragma unroll
    for (int keys = 0; keys < kKeys; keys += 32) {
      uint32_t words[kWarpGroups][4];  // keys 0 to 7, 8 to 15, 16 to 23, 24 to 31
#pragma unroll
      for (int p = 0; p < kWarpGroups; ++p) {
        load_transposed(words[p], from + raw(1, keys + lane(), warp() * kWarpGroups + p));
      }
#pragma unroll
      for (int sub = 0; sub < 2; ++sub) {
        uint32_t b[4 * kWarpGroups][2];
#pragma unroll
        for (int i = 0; i < 2 * kWarpGroups; ++i) {
          const int p = i / 2, eight = 2 * sub + i % 2, key = keys + eight * 8 + lane() % 4 * 2;
          int group_words[2];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            group_words[j] = load_word(from + parameters(1, key + j, warp() * kWarpGroups + p));
            spoil(at + key + j, group_words[j]);
          }
          const float2 low = group_of(group_words[0]), high = group_of(group_words[1]);
          const uint32_t word = words[p][eight], upper = word >> 4;
          b[4 * p][i % 2] = widen<kEvenTwo>(word, low, high), b[4 * p + 1][i % 2] = widen<kOddTwo>(word, low, high);
          b[4 * p + 2][i % 2] = widen<kEvenTwo>(upper, low, high);
          b[4 * p + 3][i % 2] = widen<kOddTwo>(upper, low, high);
        }
        Rows::add_step(keys / 16 + sub, b);
      }
    }
  }

 private:
  // A group's scale and its minimum less 128 scales.
  __device__ static float2 group_of(int word) {
    const float2 group = __half22float2(reinterpret_cast<const __half2&>(word));
    return {group.x, __fmaf_rn(group.x, -128.0f, group.y)};
  }
  // The lower nibbles of two bytes as elements; each has a group.
  template <uint32_t kTwo>
  __device__ static uint32_t widen(uint32_t word, const float2& low_group, const float2& high_group) {
    const uint32_t both = biased_bytes<kTwo>(word) & 0xff0fff0f;
    const float low = __uint_as_float(both << 16), high = __uint_as_float(both & 0xffff0000);
    return pack(__fmaf_rn(low, low_group.x, low_group.y), __fmaf_rn(high, high_group.x, high_group.y), T{});
  }

  // The parameters of a group of values that are not finite become zeros; rows of q that see `position` are marked.
  __device__ void spoil(int position, int& word) const {
    if (!not_finite<__half>({static_cast<uint32_t>(word), 0, 0, 0})) return;
    word = 0;
    mark_rows(first_of(0), limit_of(0), kRows, position);
  }
};

}  // namespace headrace::kernels::cuda
