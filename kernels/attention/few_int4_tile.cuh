// Flash attention over int4 rows (kernels/rows/op.h) for few rows of q (few_rows.cuh). Each value is widened once in a
// block, by the warp that multiplies it, in registers. cp.async copies tiles as they are stored, some tiles ahead.
// Device code, internal to kernels/attention.
//
// A raw chunk, 16 bytes of a row, is a group of 32 columns: two steps of the products, the lower nibbles and the upper
// ones, and four n-tiles of o, the even and the odd columns of both.
#pragma once

#include "kernels/attention/few_rows.cuh"
#include "kernels/attention/low_bit_tile.cuh"
#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

// The memory of FewInt4Tile that comes before FewRows': q, if it is not in registers, and tiles of K and V: their
// values, then their groups' scales and minima.
template <int kDim, int kHalves>
struct FewInt4Memory {
  static constexpr bool kQueriesInRegisters = kHalves <= 2;
  static constexpr int kGroups = kDim / static_cast<int>(kInt4Group), kRow = kDim / 2;
  static constexpr int kPlane = keys_in_tile(kDim) * kRow, kParameters = keys_in_tile(kDim) * kGroups * 4;
  static constexpr int kStages = 4, kStageBytes = 2 * (kPlane + kParameters);
  static constexpr int kStagesAt = kQueriesInRegisters ? 0 : 8 * kHalves * kDim * 2;
  static constexpr int kBytes = kStagesAt + kStages * kStageBytes;
};

// kDim: head_dim itself.
template <typename T, int kDim, int kHalves>
struct FewInt4Tile : FewInt4Memory<kDim, kHalves>, FewRows<T, kDim, kHalves, FewInt4Memory<kDim, kHalves>::kBytes> {
  using Memory = FewInt4Memory<kDim, kHalves>;
  using Base = FewRows<T, kDim, kHalves, Memory::kBytes>;
  using Base::begin, Base::first_of, Base::fragment_row, Base::kKeys, Base::kMTiles, Base::kNTiles, Base::kRows;
  using Base::kSteps, Base::kThreads, Base::kWarpKeys, Base::kWarps, Base::lane, Base::limit_of, Base::o, Base::rows;
  using Base::segment, Base::shape, Base::shared, Base::tiles, Base::warp;
  using Memory::kGroups, Memory::kParameters, Memory::kPlane, Memory::kQueriesInRegisters, Memory::kRow;
  using Memory::kStageBytes, Memory::kStages, Memory::kStagesAt;
  using typename Base::Scores;
  static constexpr int kWarpGroups = kGroups / kWarps;  // a warp's columns of V
  static_assert(kWarpGroups >= 1 && kThreads % kGroups == 0);

  uint32_t q[kQueriesInRegisters ? kSteps : 1][4];
  float scale_log2;
  uint32_t values_at, parameters_at;  // bytes from a plane's first to those of the first row to walk

  __device__ uint32_t stage(int tile) const { return shared + kStagesAt + tile % kStages * kStageBytes; }
  // Of a stage: side 0 for K, 1 for V. Chunks are permuted by the row's number, so that ldmatrix reads 8 rows from
  // different banks.
  __device__ static uint32_t raw(int side, int row, int chunk) {
    constexpr int kAlike = kGroups < 8 ? 8 / kGroups : 1;
    return side * kPlane + row * kRow + ((chunk ^ (row / kAlike % kGroups)) << 4);
  }
  __device__ static uint32_t parameters(int side, int row, int group) {
    return 2 * kPlane + side * kParameters + (row * kGroups + group) * 4;
  }
  __device__ uint32_t query(int row, int chunk) const { return shared + row * (kDim * 2) + ((chunk ^ (row & 7)) << 4); }

  // Begins to copy the segment's first tiles, from the one that holds position `seen` on. REQUIRES: a plane has less
  // than 4 GiB.
  __device__ void open(const void* shared_memory, const AttentionShape& of, const KvSegment& from, int kv_head,
                       int seen) {
    const int skip = Base::rows_before(from, seen);
    Base::open_segment(shared_memory, of, from, skip);
    scale_log2 = __fmul_rn(of.scale, kLog2E);
    const uint32_t first = kv_head * from.stride_rows + from.first_row + skip;
    const uint32_t all = static_cast<int>(of.kv_heads) * from.stride_rows;
    values_at = first * kRow;
    parameters_at = all * kRow + first * (kGroups * 4);
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);
  }

  // row_of(row) returns a row's q and bounds; missing rows of the block repeat the last one. aligned: whether every row
  // of q is.
  template <typename RowOf>
  __device__ void start(bool aligned, const TileBounds& bounds, const RowOf& row_of) {
    Base::start_rows(bounds, row_of);
    if constexpr (kQueriesInRegisters) {
      load_fragments<kHalves>(row_of(fragment_row(0, 0)).q, row_of(fragment_row(0, kHalves - 1)).q, kDim, aligned, q);
    } else {
      store_fours<kDim, kRows, kThreads>(kDim, aligned, row_of, [&](int row, int chunk) { return query(row, chunk); });
    }
  }

  // Processes the segment's rows below position `limit`.
  __device__ void walk(int limit) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the first tile and what was stored
    const int end = min(begin() + rows, limit);
    tiles = max(end - begin() + kKeys - 1, 0) / kKeys;
    for (int tile = 0; tile < tiles; ++tile) {
      const uint32_t from = stage(tile);
      const int at = begin() + tile * kKeys;
      Scores s;
      score(from, s);
      if (Base::is_partial(at, end)) Base::mask(at, end, s);
      Base::find_tops(s);
      __syncthreads();  // the maxima are there, and all threads have finished with the values of the tile before
      fetch(tile + kStages - 1);
      Base::weigh(
          tile, scale_log2, [](int, float weight) { return weight; }, s);
      wait_copies<kStages - 2>();  // the next tile
      __syncthreads();             // the weights are there, and that tile
      Base::add_sums();
      add(from, at);
    }
    wait_copies<0>();
  }

  // Stores the states of rows [0, count) of the block; state_of(row) is a row's index in `to`.
  template <typename StateOf>
  __device__ void store(int count, const AttentionState& to, const StateOf& state_of) const {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const int tile = i / 2, half = i % 2, row = fragment_row(tile, half);
      if (row >= count) continue;
      const int64_t state = state_of(row);
#pragma unroll
      for (int n = 0; n < 4 * kWarpGroups; n += 2) {
        const int d = (warp() * 2 * kWarpGroups + n / 2) * 16 + lane() % 4 * 4;
        const float(&even)[4] = o[tile][n], (&odd)[4] = o[tile][n + 1];
        // + 0: a zero's sign must not depend on rows with weight 0.
        *reinterpret_cast<float4*>(to.o + state * kDim + d) = {
            __fadd_rn(even[2 * half], 0.0f), __fadd_rn(odd[2 * half], 0.0f), __fadd_rn(even[2 * half + 1], 0.0f),
            __fadd_rn(odd[2 * half + 1], 0.0f)};
      }
    }
    Base::store_sums(count, scale_log2, to, state_of);
  }

 private:
  // ---- Copies. All rows that the segment has are copied: values are finite, and parameters are checked.

  __device__ const unsigned char* plane(int side) const {
    return static_cast<const unsigned char*>(side == 0 ? segment->k : segment->v);
  }
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

  // ---- A tile

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

  __device__ void multiply_step(int step, const uint32_t (&b)[kNTiles][2], Scores& s) const {
#pragma unroll
    for (int tile = 0; tile < kMTiles; ++tile) {
      uint32_t a[4];
      if constexpr (kQueriesInRegisters) {
#pragma unroll
        for (int j = 0; j < 4; ++j) a[j] = q[step][j];
      } else {
        load_matrices(a, query(tile * 16 + lane() % 16, step * 2 + lane() / 16));
      }
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) multiply(s[tile][n], a, b[n][0], b[n][1], T{});
    }
  }

  // s = q k^T for the warp's keys, unscaled.
  __device__ void score(uint32_t from, Scores& s) const {
    Base::clear(s);
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
        multiply_step(2 * (first + i), low, s);
        multiply_step(2 * (first + i) + 1, high, s);
      }
    }
  }

  // Groups of values at `at` and the next positions that are not finite become zeros; rows of q that see them are
  // marked. Seldom called.
  __device__ void spoil(int position, int& word) const {
    if (!not_finite<__half>({static_cast<uint32_t>(word), 0, 0, 0})) return;
    word = 0;
    mark_rows(first_of(0), limit_of(0), kRows, position);
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
        Base::add_step(keys / 16 + sub, b);
      }
    }
  }
};

}  // namespace headrace::kernels::cuda
