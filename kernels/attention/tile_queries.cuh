// The rows of q of a block of tile.cuh: with few rows as fragments in registers, otherwise in shared memory. Device
// code, internal to kernels/attention.
#pragma once

#include <cstdint>

#include "kernels/attention/query_cast.cuh"
#include "kernels/cuda/instructions.cuh"

namespace headrace::kernels::cuda {

// Q: the type of q, which is converted to T.
template <typename T, int kDim, int kMTiles, typename Q, int kWarpsOf, bool kInRegisters>
struct TileQueries {
  static constexpr int kWarps = kWarpsOf, kThreads = 32 * kWarps;
  static constexpr int kWarpRows = 16 * kMTiles, kRows = kWarps * kWarpRows;
  static constexpr int kSteps = kDim / 16, kChunks = kDim / 8;  // a chunk: 16 bytes
  static constexpr int kRowBytes = kDim * 2;
  static constexpr bool kQueriesInRegisters = kInRegisters;
  static constexpr int kScalesAt = kQueriesInRegisters ? 0 : kRows * kRowBytes;
  static constexpr int kBytes = kScalesAt + (kCasts<Q, T> ? kRows * 4 : 0);  // of shared memory

  uint32_t shared;                                  // the address of the block's memory, which begins with q
  uint32_t q[kQueriesInRegisters ? kSteps : 1][4];  // a fragment for each step
  float scale_log2;                                 // of unconverted rows of q

  // Chunks of a row are permuted by the row's number, so that ldmatrix reads 8 rows from different banks.
  __device__ static uint32_t place(int row, int chunk) {
    return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }
  __device__ static int warp_row() { return threadIdx.x / 32 * kWarpRows; }
  __device__ static int fragment_row(int tile, int half) { return fragment_row(tile, half, threadIdx.x); }
  __device__ static int fragment_row(int tile, int half, int thread) {
    return thread / 32 * kWarpRows + tile * 16 + half * 8 + thread % 32 / 4;
  }
  // What a row's scores are multiplied by.
  __device__ float scale_of(int tile, int half) const {
    if constexpr (!kCasts<Q, T>) return scale_log2;
    return __int_as_float(load_word(scale_at(fragment_row(tile, half))));
  }

 protected:
  template <typename RowOf>
  __device__ void load_queries(int dim, const RowOf& row_of) {
    const unsigned short* row[2] = {bits(row_of(fragment_row(0, 0)).q), bits(row_of(fragment_row(0, 1)).q)};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int d = step * 16 + i / 2 * 8 + threadIdx.x % 4 * 2;
        q[step][i] = d < dim ? row[i % 2][d] | uint32_t{row[i % 2][d + 1]} << 16 : 0;
      }
    }
    if constexpr (kCasts<Q, T>) cast_fragments();
  }
  __device__ void cast_fragments() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int largest = 0;
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) largest = larger(largest, q[i / 2][i % 2 * 2 + half]);
      const float up = put_scale(fragment_row(0, half), largest_of_quad(largest), threadIdx.x % 4 == 0);
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) {
        uint32_t& pair = q[i / 2][i % 2 * 2 + half];
        pair = cast_pair(pair, up);
      }
    }
  }
  // Stores what the row's scores are multiplied by, if `stores`, and returns what its q is multiplied by.
  __device__ float put_scale(int row, int largest, bool stores) const {
    const CastFactors factors = cast_factors(largest);
    if (stores) store_word(scale_at(row), __float_as_int(__fmul_rn(scale_log2, factors.down)));
    return factors.up;
  }
  template <typename RowOf>
  __device__ void copy_queries(int dim, const RowOf& row_of) {
    constexpr int kRowsAtOnce = kThreads / kChunks;
    const int chunk = threadIdx.x % kChunks, bytes = chunk * 8 < dim ? 16 : 0;
#pragma unroll 4
    for (int row = threadIdx.x / kChunks; row < kRows; row += kRowsAtOnce) {
      const void* from = row_of(row).q;
      copy_async(shared + place(row, chunk), bytes > 0 ? static_cast<const T*>(from) + chunk * 8 : from, bytes);
    }  // in the copy group of the first keys
  }
  template <typename RowOf>
  __device__ void store_queries(int dim, const RowOf& row_of) {
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < kRows; row += kWarps) {
      const unsigned short* from = bits(row_of(row).q);
      uint32_t pairs[kDim / 64];
#pragma unroll
      for (int i = 0; i < kDim / 64; ++i) {
        const int d = i * 64 + lane * 2;
        pairs[i] = d < dim ? from[d] | uint32_t{from[d + 1]} << 16 : 0;
      }
      if constexpr (kCasts<Q, T>) {
        int largest = 0;
        for (const uint32_t pair : pairs) largest = larger(largest, pair);
        const float up = put_scale(row, __reduce_max_sync(~0u, largest), lane == 0);
        for (uint32_t& pair : pairs) pair = cast_pair(pair, up);
      }
#pragma unroll
      for (int i = 0; i < kDim / 64; ++i) {
        const int d = i * 64 + lane * 2;
        store_word(shared + place(row, d / 8) + d % 8 * 2, static_cast<int>(pairs[i]));
      }
    }
  }

  __device__ static const unsigned short* bits(const void* p) { return static_cast<const unsigned short*>(p); }

 private:
  __device__ uint32_t scale_at(int row) const { return shared + kScalesAt + row * 4; }
};

}  // namespace headrace::kernels::cuda
