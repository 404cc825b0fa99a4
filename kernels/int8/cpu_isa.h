// Conversion to 8 bits and the product's tiles, tables of an instruction set (kernels/cpu/isa.h). All sets give equal
// bits where op.h says so. `padded`: padded_int8_cols(). Serial; any thread.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/cpu/isa.h"

namespace headrace::kernels {

struct Int8ConvertKernels {
  // Rotates a row in place, writes its bytes and returns its scale. block: 1, 64 or 128. The values beyond the row's
  // columns, to `padded`, are zero.
  float (*quantise)(float* values, int64_t padded, int64_t block, int8_t* bytes);
  // Makes a panel of 16 rows, [16, padded].
  void (*make_panel)(const int8_t* rows, int64_t padded, int8_t* panel);
};
HEADRACE_DECLARE_ISA(Int8ConvertKernels, int8_convert_kernels)

// The part of an output that a call computes.
struct Int8Part {
  const int8_t* x;        // [rows, padded]
  const float* x_scales;  // [rows]
  const int8_t* panels;
  const float* w_scales;  // [n]
  const void* bias;       // [n] or null
  const void* residual;   // [rows, n] or null
  void* out;              // [rows, n]
  DType type;
  int64_t n, padded, panel_bytes;
  float unrotate;  // 1 / block
  int64_t row_begin, row_end, panel_begin, panel_end;
  void* room;  // room_bytes(padded), 64-byte aligned
};
struct Int8ProductKernels {
  void (*part)(const Int8Part& part);
  int64_t tile_rows, tile_panels;  // parts are best cut at multiples of these
};
HEADRACE_DECLARE_ISA(Int8ProductKernels, int8_product_kernels)

constexpr int64_t kMaxInt8TileRows = 6;
constexpr int64_t int8_room_bytes(int64_t padded) { return kMaxInt8TileRows * 2 * padded; }

}  // namespace headrace::kernels
