// Brings x to shared memory, for kernels/product/packed.cuh: in steps of 64 columns, or all of it, normalised if the
// product asks for it.
#pragma once

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/elementwise/norm_threads.cuh"
#include "kernels/product/packed.h"
#include "kernels/product/packed_fragments.cuh"

namespace headrace::kernels::cuda {

// The row of x of a row of the product; of one beyond the last, that of the last.
template <typename Shape>
__device__ inline int64_t row_of_x(const PackedProduct& p, int row) {
  if (Shape::kGathers && p.from != nullptr) return p.from[min(row, p.rows - 1)];
  return row;
}

// Copies steps of x to shared memory, in the order of the fragments: lane 4 (r % 8) + q % 4 reads the 16 bytes of row r
// and columns 8 q. The two halves of a step have different row orders, to avoid bank conflicts.
template <typename Shape>
struct XSource {
  static constexpr int kChunks = kStepCols / 8;                     // of a row
  static constexpr int kRowsAtOnce = Shape::kWarps * 32 / kChunks;  // of a part's threads
  static_assert(Shape::kWhole || kRowsAtOnce % 8 == 0);  // so that a thread's rows have one place in their tiles of 8
  static constexpr int kOffsets = Shape::kGathers ? (Shape::kRowTiles * 8 + kRowsAtOnce - 1) / kRowsAtOnce : 1;
  const char* from;
  uint32_t offsets[kOffsets];  // of a thread's rows, if it gathers
  uint32_t to;
  int rows_left, cols_left;  // from this thread's first copy on; of the block, of x

  __device__ XSource(const PackedProduct& p, int thread, const unsigned char* shared) {
    const int chunk = thread % kChunks, half = chunk / 4, row = thread / kChunks, first = first_row();
    rows_left = block_rows(p) - row;
    cols_left = p.k - chunk * 8;
    if constexpr (Shape::kGathers) {
      from = static_cast<const char*>(p.x);
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles * 8; i += kRowsAtOnce) {
        const auto of = static_cast<uint32_t>(row_of_x<Shape>(p, first + row + i));
        offsets[i / kRowsAtOnce] = (of * static_cast<uint32_t>(p.k) + chunk * 8) * 2;
      }
    } else {
      from = static_cast<const char*>(p.x) + (int64_t{first + row} * p.k + chunk * 8) * 2;
    }
    to = shared_address(shared) + (row / 8 * 2 + half) * 512u + (((row % 8) ^ half) * 4 + chunk % 4) * 16u;
  }
  __device__ static int first_row() { return static_cast<int>(blockIdx.x) * Shape::kRowTiles * 8; }
  __device__ static int block_rows(const PackedProduct& p) { return min(p.rows - first_row(), Shape::kRowTiles * 8); }

  // `stage`: in bytes. Columns beyond k become zeros; rows beyond the last stay undefined, since no output uses them.
  __device__ void copy(const PackedProduct& p, int step, uint32_t stage) const {
    const int bytes = step * kStepCols < cols_left ? 16 : 0;
    const char* const source = bytes > 0 ? from + step * (kStepCols * 2) : from;
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles * 8; i += kRowsAtOnce) {
      const int64_t row = Shape::kGathers ? offsets[i / kRowsAtOnce % kOffsets] : int64_t{i} * p.k * 2;
      if (i < rows_left) copy_async(to + stage + i / 8 * 1024u, source + row, bytes);
    }
  }
  // A record's sums of x, 32 bytes a row.
  __device__ static void copy_sums(const PackedProduct& p, int record, int thread, const uint32_t* sums) {
    const int records = (p.k + kRecordCols - 1) / kRecordCols, row = thread / 2, rows = block_rows(p);
    const int64_t first = row_of_x<Shape>(p, first_row() + row);
    const char* const source =
        reinterpret_cast<const char*>(p.x_sums) + (first * records + record) * 32 + thread % 2 * 16;
    static_assert(!Shape::kGathers || Shape::kRowTiles * 8 <= Shape::kWarps * 16);
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles * 8; i += Shape::kWarps * 16) {
      if (row + i < rows)
        copy_async(shared_address(sums) + (thread + 2 * i) * 16u, source + int64_t{i} * records * 32, 16);
    }
  }
};

// The columns of x that a run reads, of all rows: 16 bytes of row r and columns 8 q are at ((q / 4) rows + r) 4 + q
// % 4.
template <typename Shape>
__device__ inline void copy_rows(const PackedProduct& p, int step_begin, int step_end, unsigned char* shared) {
  constexpr int kThreads = Shape::kWarps * 32;
  const int first = step_begin * (kStepCols / 8) + static_cast<int>(threadIdx.x) % kThreads;
  const int end = step_end * (kStepCols / 8), used = p.k / 8;
  const uint32_t to = shared_address(shared);
  const int own = Shape::kGathers ? static_cast<int>(row_of_x<Shape>(p, static_cast<int>(threadIdx.x % 32))) : 0;
#pragma unroll 1
  for (int row = 0; row < p.rows; ++row) {
    const int of = Shape::kGathers ? __shfl_sync(kAllLanes, own, row) : row;
    const char* const from = static_cast<const char*>(p.x) + static_cast<int64_t>(of) * p.k * 2;
#pragma unroll 4
    for (int q = first; q < end; q += kThreads) {
      copy_async(to + ((q / 4 * p.rows + row) * 4 + q % 4) * 16u, q < used ? from + q * 16 : from, q < used ? 16 : 0);
    }
  }
  commit_copies();
}

// Eight elements of a row of x before its norm.
__device__ inline void load_unnormalised(const PackedProduct& p, int row, int chunk, float (&values)[kChunk]) {
  const int64_t element = static_cast<int64_t>(row) * p.k + chunk * kChunk;
  if (p.x_f32) {
    load_chunk(static_cast<const float*>(p.x) + element, kChunk, true, values);
  } else {
    load_chunk(static_cast<const __nv_bfloat16*>(p.x) + element, kChunk, true, values);
  }
}

// Writes all columns of x, normalised as by rms_norm() and rounded, to the same places. All threads of the block call
// it; the order of sums is that of kernels/elementwise/norm_threads.cuh.
template <typename Shape>
__device__ inline void normalise_rows(const PackedProduct& p, unsigned char* to) {
  __shared__ float of_warp[kNormThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), threads = norm_threads(p.k);
  const int chunks = (p.k + kRecordCols - 1) / kRecordCols * (kRecordCols / 8), used = p.k / 8;
  const auto* const weight = static_cast<const __nv_bfloat16*>(p.norm);
  for (int chunk = thread; chunk < used; chunk += Shape::kThreads) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(weight + chunk * kChunk));
  }
#pragma unroll 1
  for (int row = 0; row < p.rows; ++row) {
    for (int i = thread; i < threads; i += Shape::kThreads) {  // whole warps
      float squares = 0.0f;
      for (int chunk = i; chunk < used; chunk += threads) {
        float values[kChunk];
        load_unnormalised(p, row, chunk, values);
#pragma unroll
        for (int j = 0; j < kChunk; ++j) squares = fmaf(values[j], values[j], squares);
      }
      squares = warp_sum(squares);
      if (thread % 32 == 0) of_warp[i / 32] = squares;
    }
    __syncthreads();
    float sum = of_warp[0];
    for (int warp = 1; warp < threads / 32; ++warp) sum = __fadd_rn(sum, of_warp[warp]);
    const float mean = __fdiv_rn(sum, static_cast<float>(p.k));
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
    for (int chunk = thread; chunk < chunks; chunk += Shape::kThreads) {
      float values[kChunk] = {};
      if (chunk < used) {
        float weights[kChunk];
        load_unnormalised(p, row, chunk, values);
        load_chunk(weight + chunk * kChunk, kChunk, true, weights);
#pragma unroll
        for (int j = 0; j < kChunk; ++j) values[j] = __fmul_rn(__fmul_rn(values[j], scale), weights[j]);
      }
      auto* const place = reinterpret_cast<__nv_bfloat16*>(to + ((chunk / 4 * p.rows + row) * 4 + chunk % 4) * 16);
      store_chunk(place, kChunk, true, values);
    }
    __syncthreads();
  }
}

// Waits for the warps that share a run's x. The ids are constants, because an id in a register reserves all sixteen
// barriers of a block.
template <int kParts, int kThreads>
__device__ inline void barrier_of(int run) {
  static_assert(kParts == 1 || kParts == 3 || kParts == 4);
  if constexpr (kParts == 1) {
    __syncthreads();
  } else {
    if (run == 0) asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
    if (run == 1) asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory");
    if (run == 2) asm volatile("bar.sync 3, %0;" ::"n"(kThreads) : "memory");
    if (run == 3) asm volatile("bar.sync 4, %0;" ::"n"(kThreads) : "memory");
  }
}

// The sums of 32 columns of x where a block holds all of it: of row r and group j at j rows + r, the order of x too.
__device__ inline void sum_x(const PackedProduct& p, int first_group, int end_group, int warp, int warps,
                             const unsigned char* x, uint32_t* sums) {
  const int lane = static_cast<int>(threadIdx.x % 32), first = first_group * p.rows, end = end_group * p.rows;
#pragma unroll 2
  for (int at = first + warp * 8; at < end; at += warps * 8) {
    const uint4 part = *reinterpret_cast<const uint4*>(x + min(at + lane / 4, end - 1) * 64 + lane % 4 * 16);
    const uint32_t word = word_of_sum(part, lane);
    const int to = at + lane % 4 * 2 + lane / 4;
    if (lane < 8 && to < end) sums[to] = word;
  }
}

}  // namespace headrace::kernels::cuda
