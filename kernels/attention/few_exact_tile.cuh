// Flash attention over exact rows for few rows of q (few_rows.cuh). cp.async loads K and V two tiles ahead. Device
// code, internal to kernels/attention.
#pragma once

#include "kernels/attention/few_rows.cuh"
#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

// kHalves: 1 or 2, so that q is in registers.
template <typename T, int kDim, int kHalves>
struct FewExactTile : FewRows<T, kDim, kHalves, 4 * keys_in_tile(kDim) * kDim * 2> {  // two tiles of K and V first
  static_assert(kHalves <= 2);
  using Base = FewRows<T, kDim, kHalves, 4 * keys_in_tile(kDim) * kDim * 2>;
  using Base::dim, Base::first_of, Base::fragment_row, Base::kKeys, Base::kNTiles, Base::kPieces, Base::kRows;
  using Base::kSteps, Base::kThreads, Base::lane, Base::limit_of, Base::o, Base::rows, Base::shared, Base::tiles;
  using Base::warp;
  using typename Base::Scores;
  static constexpr int kChunks = kDim / 8, kRowBytes = kDim * 2, kTileBytes = kKeys * kRowBytes;  // a chunk: 16 bytes

  uint32_t q[kSteps][4];
  float scale_log2;
  int position;    // of the first row to walk
  const T *k, *v;  // of that row

  // Chunks of a row are permuted by the row's number, so that ldmatrix reads 8 rows from different banks.
  __device__ static uint32_t place(int row, int chunk) {
    return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }
  __device__ uint32_t keys(int tile) const { return shared + tile % 2 * 2 * kTileBytes; }
  __device__ uint32_t values(int tile) const { return keys(tile) + kTileBytes; }

  // Begins to copy the segment's first tiles, from the one that holds position `seen` on.
  __device__ void open(const void* shared_memory, const AttentionShape& of, const KvSegment& from, int kv_head,
                       int seen) {
    const int skip = Base::rows_before(from, seen);
    Base::open_segment(shared_memory, of, from, skip);
    scale_log2 = __fmul_rn(of.scale, kLog2E);
    position = from.position + skip;
    const int64_t first = (int64_t{kv_head} * from.stride_rows + skip) * dim();
    k = static_cast<const T*>(from.k) + first;
    v = static_cast<const T*>(from.v) + first;
    fetch(k, 0, keys(0));
    fetch(v, 0, values(0));
    fetch(k, 1, keys(1));
  }

  // row_of(row) returns a row's q and bounds; missing rows of the block repeat the last one.
  template <typename RowOf>
  __device__ void start(const TileBounds& bounds, const RowOf& row_of) {
    Base::start_rows(bounds, row_of);
    load_queries(bits(row_of(fragment_row(0, 0)).q), bits(row_of(fragment_row(0, kHalves - 1)).q));
  }

  // Processes the segment's rows below position `limit`.
  __device__ void walk(int limit) {
    const int end = min(position + rows, limit);
    tiles = max(end - position + kKeys - 1, 0) / kKeys;
    for (int tile = 0; tile < tiles; ++tile) {
      const int at = position + tile * kKeys;
      wait_copies<2>();
      __syncthreads();  // the keys are there, and all threads have finished with the values of the tile before
      fetch(v, tile + 1, values(tile + 1));
      const bool partial = Base::is_partial(at, end);
      Scores s;
      score(keys(tile), s);
      if (partial) Base::mask(at, end, s);
      Base::find_tops(s);
      __syncthreads();  // the maxima are there, and all threads have finished with the keys
      fetch(k, tile + 2, keys(tile));
      Base::weigh(
          tile, scale_log2, [](int, float weight) { return weight; }, s);
      wait_copies<3>();
      __syncthreads();  // the weights and the values are there
      if (partial) screen_values<T, kKeys, kChunks, kThreads>(values(tile), at, first_of(0), limit_of(0), kRows);
      Base::add_sums();
      add(values(tile));
    }
    wait_copies<0>();
  }

  // Stores the states of rows [0, count) of the block; state_of(row) is a row's index in `to`.
  template <typename StateOf>
  __device__ void store(int count, const AttentionState& to, const StateOf& state_of) const {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const int half = i, row = fragment_row(0, half);
      if (row >= count) continue;
      const int64_t state = state_of(row);
#pragma unroll
      for (int n = 0; n < 2 * kPieces; ++n) {
        const int d = (warp() * 2 * kPieces + n) * 8 + lane() % 4 * 2;
        if (d >= dim()) break;
        // + 0: a zero's sign must not depend on rows with weight 0.
        *reinterpret_cast<float2*>(to.o + state * dim() + d) = {__fadd_rn(o[0][n][2 * half], 0.0f),
                                                                __fadd_rn(o[0][n][2 * half + 1], 0.0f)};
      }
    }
    Base::store_sums(count, scale_log2, to, state_of);
  }

 private:
  __device__ static const unsigned short* bits(const void* row) { return static_cast<const unsigned short*>(row); }

  __device__ void load_queries(const unsigned short* low, const unsigned short* high) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int d = step * 16 + i / 2 * 8 + lane() % 4 * 2;
        const unsigned short* const row = i % 2 == 0 ? low : high;
        q[step][i] = d < dim() && i % 2 < kHalves ? row[d] | uint32_t{row[d + 1]} << 16 : 0;
      }
    }
  }
  // A group of copies, which is empty behind the last tile. Chunks beyond head_dim and rows beyond the segment's are
  // zeros.
  __device__ void fetch(const T* from, int tile, uint32_t to) const {
    constexpr int kRowsAtOnce = kThreads / kChunks;
    const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
    const int some = chunk * 8 < dim() ? rows - tile * kKeys : 0;
    if (rows > tile * kKeys) {
#pragma unroll
      for (int i = 0; i < kKeys / kRowsAtOnce; ++i) {
        const int row = first + i * kRowsAtOnce;
        const T* const source = from + int64_t{tile * kKeys + row} * dim() + chunk * 8;
        copy_async(to + place(row, chunk), row < some ? source : from, row < some ? 16 : 0);
      }
    }
    commit_copies();
  }

  // s = q k^T for the warp's keys, unscaled.
  __device__ void score(uint32_t from, Scores& s) const {
    Base::clear(s);
    constexpr int kAtOnce = 2 / kNTiles;  // steps of a load, which has 16 columns of 16 keys or 32 of 8
    const int key = warp() * Base::kWarpKeys + (kNTiles == 2 ? lane() / 16 * 8 : 0) + lane() % 8;
    const int column = kNTiles == 2 ? lane() / 8 % 2 : lane() / 8;
#pragma unroll
    for (int first = 0; first < kSteps; first += kAtOnce) {
      uint32_t words[4];
      load_matrices(words, from + place(key, first * 2 + column));
#pragma unroll
      for (int step = first; step < first + kAtOnce; ++step) {
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
          const int at = 2 * (step - first + n);  // one of the two is 0
          multiply(s[0][n], q[step], words[at], words[at + 1], T{});
        }
      }
    }
  }

  // o += weights v for the warp's columns.
  __device__ void add(uint32_t from) {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t b[2 * kPieces][2];
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        uint32_t words[4];  // columns 0 to 7: keys 0 to 7, 8 to 15; columns 8 to 15: the same
        load_transposed(words, from + place(step * 16 + lane() % 16, (warp() * kPieces + p) * 2 + lane() / 16));
        b[2 * p][0] = words[0], b[2 * p][1] = words[1], b[2 * p + 1][0] = words[2], b[2 * p + 1][1] = words[3];
      }
      Base::add_step(step, b);
    }
  }
};

}  // namespace headrace::kernels::cuda
