// The matrix product: out = x * w^T (+ bias) (+ residual), fp32 accumulation, rounded once. The residual has the type
// of the output, so a residual stream in f32 is never rounded. docs/design.md, section 6, rule 1: on CUDA the decode
// path runs in groups of 64 rows with one pinned algorithm, prefill in groups of 2,048; so x, residual and out must
// have room for kProductRowPadding rows, the padding finite. Quantised weights need neither: on CUDA's decode path they
// have a kernel whose bits depend on n and k alone, and prefill multiplies matrices that are dequantised first. The CPU
// bodies keep one order of sums per output element whatever `rows` and the number of threads are, and need no padding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/base.h"
#include "kernels/elementwise/op.h"
#include "kernels/weights/op.h"
#include "offload/device/stream.h"

namespace headrace {

constexpr int64_t kProductRowPadding = 64;

enum class ProductPath : uint8_t { kDecode, kPrefill };

// rms_norm() of x before the product.
struct InputNorm {
  const void* weight = nullptr;  // [k], of the product's type; null: x is taken as it is
  DType x_type = DType::kF32;    // of x then: the product's type, or kF32
  float eps = 0.0f;
  void* room = nullptr;  // [rows, k] of the product's type: for the bodies that write the normalised rows
};

struct ProductParams {
  const void* x;         // [rows, k], contiguous
  Weight weight;         // [n, k]; a plain one is of `type`
  const void* bias;      // [n] or null
  const void* residual;  // [rows, n] or null; may be out itself
  void* out;             // [rows, n]
  DType type;            // of x (unless it is normalised), weight and bias
  DType out_type;        // of out and residual: type, or kF32
  int64_t rows, n, k;
  ProductPath path;
  InputNorm norm{};
};
void product(const ProductParams& params, Stream& stream);

// activated [rows, n / 2] = silu(gate) * up in `type`, where gate and up, the halves of a row of the product, are
// rounded to `type` first: product() and silu_mul() one after the other. The product's output is only room for them.
// REQUIRES: no bias and no residual, and out_type = type.
void gated_product(const ProductParams& params, void* activated, Stream& stream);

// product() and rope() of its rows: rope.q, k and v are the parts of the output, which holds rotated q afterwards and
// anything where k and v were. REQUIRES: no residual, and out_type = type.
void rotated_product(const ProductParams& params, const RopeParams& rope, Stream& stream);

// Device memory that products take beside their operands, counted by --vram: what the first one on `stream` will take
// and the stream then keeps (0 once it has run one), and what is taken while the first product of its kind is checked.
// The pointers in `params` are not read.
uint64_t product_workspace_bytes(Stream& stream);
uint64_t product_check_bytes(Backend backend, const ProductParams& params);

// The kinds of product for which the library has no algorithm that passes the check, so that a slower kernel of ours
// runs them: "64 x 1536 x 576 bf16 to f32". Of what the stream has run so far; empty on the CPU. The stream's thread.
std::vector<std::string> plain_products(Stream& stream);

// Of the library whose products have the bits they have: another version may round otherwise. 0: our own bodies.
uint64_t product_library_version(Backend backend);

}  // namespace headrace
