// Products of prefill in 8 bits (docs/design.md, section 6): both operands are rotated, quantised to int8 with one
// scale a row, and multiplied with exact int32 sums. An exact sum does not depend on the order in which it is added, so
// a row's bits depend on nothing else in the call: there are no groups, no padding and no pinned algorithms, and one
// kernel serves every number of rows.
//
// The rotation is a Hadamard transform of each block of columns: it spreads a large value over its block, so that one
// scale serves the whole row. It is applied to both operands, so the product does not change but by rounding. It is
// left unnormalised, H H^T = block: a product's result is multiplied by 1 / block, a power of two.
//
// Given equal f32 inputs, both backends and all instruction sets make the same integers, scales and results.
// Each op takes one params struct of views and a stream, owns nothing and is asynchronous; the CPU body is the truth.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/elementwise/activation.h"
#include "kernels/weights/op.h"
#include "offload/device/stream.h"

namespace headrace {

// Columns that one transform spans: 128, or 64 if 128 does not divide `cols`; 1 (not rotated) if 64 does not either.
constexpr int64_t rotation_block(int64_t cols) { return cols % 128 == 0 ? 128 : cols % 64 == 0 ? 64 : 1; }

constexpr int64_t kMaxInt8Cols = 131072;  // 127 * 127 * cols fits int32

// A matrix or a set of activation rows in 8 bits. `values` is in the backend's order (kernels/int8/layout.h), which the
// ops choose and nothing else reads; weights and activations have different ones. With `top` the largest magnitude of a
// rotated row, all in f32 and each operation rounded:
//   scale = top / 127, q = round-to-nearest-even(rotated * (127 / top)).
// A row whose top is below kTinyInt8Row, as of a row of zeros, has scale 0 and q = 0. A row with a value that is not
// finite, or becomes so when it is rotated, has scale NaN and q = 0: all its products are NaN.
constexpr float kTinyInt8Row = 0x1p-120f;
struct Int8Rows {
  int8_t* values = nullptr;  // [rows, cols] in some order, 64-byte aligned, int8_values_bytes()
  float* scales = nullptr;   // [rows]
};
uint64_t int8_values_bytes(Backend backend, int64_t rows, int64_t cols);  // padding included; it need not be set
// What each thread of the CPU keeps once it has run an op with so many columns; 0 on CUDA. For --vram.
uint64_t int8_thread_bytes(Backend backend, int64_t cols);

// Converts a weight matrix: the values of its stored formats in f32, rotated, quantised row by row. Or several of one
// form, as experts are: then `weight` is the first, and those of `out` follow each other (kernels/int8/grouped.h).
struct Int8WeightParams {
  Weight weight;  // [n, k], quantised or plain
  DType type;     // of its plain parts
  Int8Rows out;   // [groups, n, k]
  int64_t groups = 1;
  uint64_t stride = 0;  // bytes from a matrix to the next one, of each part
};
void int8_weight(const Int8WeightParams& params, Stream& stream);

// Converts activations. `x` may be normalised first (as by rms_norm(), with f32 results that are not rounded to `type`;
// the sum of squares has an order of its own), or be the two halves of gate and up, of which activation(gate) * up is
// converted (f32, not rounded). These two may differ in a last bit between backends and instruction sets.
enum class Int8Input : uint8_t { kPlain, kNormed, kGated };
struct Int8ActivationParams {
  const void* x;  // [rows, cols]; kGated: [rows, 2, cols]
  Int8Input input = Int8Input::kPlain;
  const void* norm = nullptr;  // [cols], of `type`: kNormed
  float eps = 0.0f;
  DType type;  // of x and norm
  int64_t rows, cols;
  Int8Rows out;                               // [rows, cols]
  Activation activation = Activation::kSilu;  // kGated
};
void int8_activation(const Int8ActivationParams& params, Stream& stream);

// out = (int32 sum) * (x scale * w scale / block) (+ bias) (+ residual), f32, rounded once to `type`. The two scales
// are multiplied first, then 1 / block, then the sum (converted to f32); bias and residual are added in this order.
// Each operation is rounded.
struct Int8ProductParams {
  Int8Rows x;                      // [rows, k], of int8_activation()
  Int8Rows weight;                 // [n, k], of int8_weight()
  const void* bias = nullptr;      // [n] or null
  const void* residual = nullptr;  // [rows, n] or null; may be out itself
  void* out;                       // [rows, n], no padding
  DType type;                      // of bias, residual and out
  int64_t rows, n, k;
};
void int8_product(const Int8ProductParams& params, Stream& stream);

}  // namespace headrace
