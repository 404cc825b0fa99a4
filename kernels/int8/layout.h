// Where the ops of this folder keep a value. Rows have padded_int8_cols() columns, those beyond `cols` zero.
//
// CPU: activations are row-major. Weights are in panels of 16 rows: for each four columns 16 groups of four bytes, a
// row each; then the 16 rows' sums, as int32.
//
// CUDA: 16 rows x 32 columns are 512 bytes, a fragment of the tensor cores' m16n8k32 for a warp: lane 4 g + t has 16
// bytes, the columns 8 t to 8 t + 7 of two rows, which are rows g and g + 8 of the instruction. Columns 8 t to 8 t + 3
// are the instruction's 4 t to 4 t + 3, the others 16 + 4 t to 16 + 4 t + 3. Activations (its operand A) alternate
// between the rows by four bytes, and its rows g and g + 8 are rows 2 g and 2 g + 1 of the 16. Weights (operand B)
// alternate by eight bytes, and of 32 rows, row 8 t + 4 f + 2 h + e is in fragment f, of lanes with g = 2 t + e, the
// first or second row by h. So a thread's sums of a fragment pair are eight neighbouring columns of the output. Pure;
// host and device.
#pragma once

#include <cstdint>

#include "cache/base.h"

#if defined(__CUDACC__)
#define HEADRACE_INT8_BOTH __host__ __device__
#else
#define HEADRACE_INT8_BOTH
#endif

namespace headrace::kernels {

HEADRACE_INT8_BOTH constexpr int64_t padded_int8_cols(int64_t cols) { return (cols + 63) / 64 * 64; }

namespace cpu {
constexpr int64_t kPanelRows = 16;
constexpr int64_t panel_bytes(int64_t padded_cols) { return kPanelRows * padded_cols + kPanelRows * 4; }
}  // namespace cpu

namespace cuda {

constexpr int64_t kInt8RowPadding = 256;                 // so that tiles of the product read no further
constexpr int kLeastTileRows = 64, kMostTileRows = 128;  // of the product's tiles
constexpr int kFragmentRows = 16, kFragmentCols = 32, kFragmentBytes = 512;

// The first of a row's bytes of a lane, four and, eight bytes further, four.
HEADRACE_INT8_BOTH constexpr int64_t activation_place(int64_t row, int64_t col, int64_t padded_cols) {
  return row / kFragmentRows * kFragmentRows * padded_cols + col / kFragmentCols * kFragmentBytes +
         (row % kFragmentRows / 2 * 4 + col % kFragmentCols / 8) * 16 + row % 2 * 4;
}
// The first of eight bytes of weights.
HEADRACE_INT8_BOTH constexpr int64_t weight_place(int64_t row, int64_t col, int64_t padded_cols) {
  const int64_t in = row % 32, f = in / 4 % 2, h = in / 2 % 2, g = in / 8 * 2 + in % 2;
  return (row / 32 * 2 + f) * kFragmentRows * padded_cols + col / kFragmentCols * kFragmentBytes +
         (g * 4 + col % kFragmentCols / 8) * 16 + h * 8;
}

}  // namespace cuda

}  // namespace headrace::kernels
