// What FewRows' tiles of low-bit rows share (few_int8_tile.cuh, few_int4_tile.cuh; kernels/rows/op.h has the formats).
// cp.async copies tiles as they are stored, some tiles ahead. Each value is widened once in a block, by the warp that
// multiplies it, in registers. All rows that the segment has are copied: values are finite, and a tile checks its
// parameters. Device code, internal to kernels/attention.
#pragma once

#include "kernels/attention/few_rows.cuh"
#include "kernels/attention/low_bit_tile.cuh"
#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

// The block's memory before that of FewRows: q, if it is not in registers, and tiles of K and V, each the values of
// both, then kBeside bytes for each. kRowOf: the bytes of a row's values; beside rows of 256, an SM has four blocks
// only if q is in shared memory. kWholeDim: head_dim is kDim.
template <int kDim, int kHalves, int kRowOf, int kBeside, int kStagesOf, bool kWholeDim>
struct FewLowBitMemory {
  static constexpr bool kQueriesInRegisters = kHalves <= 2 && kRowOf <= 128, kWhole = kWholeDim;
  static constexpr int kRow = kRowOf, kChunks = kRow / 16;  // of 16 bytes
  static constexpr int kPlane = keys_in_tile(kDim) * kRow, kStages = kStagesOf, kStageBytes = 2 * (kPlane + kBeside);
  static constexpr int kStagesAt = kQueriesInRegisters ? 0 : 8 * kHalves * kDim * 2;
  static constexpr int kBytes = kStagesAt + kStages * kStageBytes;
};

template <typename T, int kDim, int kHalves, typename Memory>
struct FewLowBit : Memory, FewRows<T, kDim, kHalves, Memory::kBytes> {
  using Base = FewRows<T, kDim, kHalves, Memory::kBytes>;
  using Base::begin, Base::fragment_row, Base::kKeys, Base::kMTiles, Base::kNTiles, Base::kPieces, Base::kRows;
  using Base::kSteps, Base::kThreads, Base::lane, Base::o, Base::rows, Base::segment, Base::shared, Base::tiles;
  using Base::warp;
  using Memory::kChunks, Memory::kPlane, Memory::kQueriesInRegisters, Memory::kRow, Memory::kStageBytes;
  using Memory::kStages, Memory::kStagesAt;
  using typename Base::Scores;

  uint32_t q[kQueriesInRegisters ? kSteps : 1][4];
  uint32_t values_at, parameters_at;  // bytes from a plane's first to those of the first row to walk

  __device__ int dim() const {
    if constexpr (Memory::kWhole) return kDim;
    return Base::dim();
  }
  __device__ uint32_t stage(int tile) const { return shared + kStagesAt + tile % kStages * kStageBytes; }
  // Of a stage: side 0 for K, 1 for V. Chunks are permuted by the row's number, so that ldmatrix reads 8 rows from
  // different banks.
  __device__ static uint32_t raw(int side, int row, int chunk) {
    constexpr int kAlike = kChunks < 8 ? 8 / kChunks : 1, kOrders = kChunks < 8 ? kChunks : 8;
    return side * kPlane + row * kRow + ((chunk ^ (row / kAlike % kOrders)) << 4);
  }
  __device__ uint32_t query(int row, int chunk) const { return shared + row * (kDim * 2) + ((chunk ^ (row & 7)) << 4); }
  __device__ const unsigned char* plane(int side) const {
    return static_cast<const unsigned char*>(side == 0 ? segment->k : segment->v);
  }

  // row_parameters: bytes of a row's. REQUIRES: a plane has less than 4 GiB.
  __device__ void open_rows(const void* shared_memory, const AttentionShape& of, const KvSegment& from, int kv_head,
                            int seen, int row_bytes, int row_parameters) {
    const int skip = Base::rows_before(from, seen);
    Base::open_segment(shared_memory, of, from, skip);
    const uint32_t first = kv_head * from.stride_rows + from.first_row + skip;
    const uint32_t all = static_cast<int>(of.kv_heads) * from.stride_rows;
    values_at = first * row_bytes;
    parameters_at = all * row_bytes + first * row_parameters;
  }

  // row_of(row) returns a row's q and bounds; missing rows of the block repeat the last one. aligned: whether every row
  // of q is.
  template <typename RowOf>
  __device__ void start(bool aligned, const TileBounds& bounds, const RowOf& row_of) {
    Base::start_rows(bounds, row_of);
    if constexpr (kQueriesInRegisters) {
      load_fragments<kHalves>(row_of(fragment_row(0, 0)).q, row_of(fragment_row(0, kHalves - 1)).q, dim(), aligned, q);
    } else {
      store_fours<kDim, kRows, kThreads>(dim(), aligned, row_of, [&](int row, int chunk) { return query(row, chunk); });
    }
  }

  // Processes the segment's rows below position `limit`. Tile: the derived type.
  template <typename Tile>
  __device__ void walk_tiles(Tile& self, int limit) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the first tile and what was stored
    const int end = min(begin() + rows, limit);
    tiles = max(end - begin() + kKeys - 1, 0) / kKeys;
    for (int tile = 0; tile < tiles; ++tile) {
      const uint32_t from = stage(tile);
      const int at = begin() + tile * kKeys;
      Scores s;
      self.score(tile, from, s);
      if (Base::is_partial(at, end)) Base::mask(at, end, s);
      Base::find_tops(s);
      __syncthreads();  // the maxima are there, and all threads have finished with the values of the tile before
      self.fetch(tile + kStages - 1);
      self.weigh(tile, s);
      wait_copies<kStages - 2>();  // the next tile
      __syncthreads();             // the weights are there, and that tile
      Base::add_sums();
      self.add(from, at);
    }
    wait_copies<0>();
  }

  // s += the products of one step; b: the words of the warp's n-tiles of keys.
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

  // Stores the states of rows [0, count) of the block; state_of(row) is a row's index in `to`. An n-tile of o has the
  // even or the odd ones of 16 columns. value_of(sum): an element. scale: as weigh() had it.
  template <typename ValueOf, typename StateOf>
  __device__ void store_rows(int count, float scale, const ValueOf& value_of, const AttentionState& to,
                             const StateOf& state_of) const {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const int tile = i / 2, half = i % 2, row = fragment_row(tile, half);
      if (row >= count) continue;
      const int64_t state = state_of(row);
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int d = (warp() * kPieces + p) * 16 + lane() % 4 * 4;
        if (d >= dim()) break;
        const float(&even)[4] = o[tile][2 * p], (&odd)[4] = o[tile][2 * p + 1];
        // + 0: a zero's sign must not depend on rows with weight 0.
        *reinterpret_cast<float4*>(to.o + state * dim() + d) = {
            __fadd_rn(value_of(even[2 * half]), 0.0f), __fadd_rn(value_of(odd[2 * half]), 0.0f),
            __fadd_rn(value_of(even[2 * half + 1]), 0.0f), __fadd_rn(value_of(odd[2 * half + 1]), 0.0f)};
      }
    }
    Base::store_sums(count, scale, to, state_of);
  }
};

}  // namespace headrace::kernels::cuda
