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
constexpr int64_t padded_rows(int64_t rows) {
  return static_cast<int64_t>(round_up(static_cast<uint64_t>(rows), kProductRowPadding));
}
// The CPU bodies need no padding.
constexpr int64_t padded_rows(Backend backend, int64_t rows) {
  return backend == Backend::kCpu ? rows : padded_rows(rows);
}

enum class ProductPath : uint8_t { kDecode, kPrefill };

// Applies rms_norm() to x before the product.
struct InputNorm {
  const void* weight = nullptr;  // [k], of the product's type; null: x is not normalised
  DType x_type = DType::kF32;    // of x if it is normalised: the product's type, or kF32
  float eps = 0.0f;
  void* room = nullptr;  // [rows, k] of the product's type: scratch for bodies that write the normalised rows
};

struct ProductParams {
  const void* x;                   // [rows, k], contiguous
  Weight weight;                   // [n, k]; a plain one is of `type`
  const void* bias = nullptr;      // [n] or null
  const void* residual = nullptr;  // [rows, n] or null; may be out itself
  void* out;                       // [rows, n]
  DType type;                      // of x (unless it is normalised), weight and bias
  DType out_type;                  // of out and residual: type, or kF32
  int64_t rows, n, k;
  ProductPath path;
  InputNorm norm{};
  Activation activation = Activation::kSilu;  // of gated_product() alone
};
void product(const ProductParams& params, Stream& stream);

// Computes activated [rows, n / 2] = activation(gate) * up in `type`, as product() and then silu_mul() do: gate and up,
// the halves of a row of the product, are rounded to `type` first. The product's output is scratch. REQUIRES: no bias
// and no residual, and out_type = type.
void gated_product(const ProductParams& params, void* activated, Stream& stream);

// Computes product() and then rope() of its rows. rope.q, k and v are the parts of the output; it then holds rotated q,
// and the places of k and v are undefined. REQUIRES: no residual, and out_type = type.
void rotated_product(const ProductParams& params, const RopeParams& rope, Stream& stream);

// One product for each group of rows, with matrices of one form: experts, of which each has the rows that chose it.
// What is in a group is known on the device alone. Weights of all types are multiplied as the decode path multiplies
// them where they are quantised, whatever the number of rows is, so a row's bits depend on n and k alone. Needs no
// padding.
struct GroupedProductParams {
  const void* x;         // [x_rows, k], contiguous
  Weight weight;         // [n, k], of group 0; a plain one is of `type`
  uint64_t stride;       // bytes from a group's matrix to the next one's, of each part
  const int32_t* begin;  // [groups + 1], device, ascending: group g has rows [begin[g], begin[g + 1]) of out
  void* out;             // [rows, n], group after group
  DType type;            // of x and of the weight
  DType out_type;        // type, or kF32
  int64_t rows, groups, n, k;
  int64_t most_rows;  // of a group, at most
  // [listed()], device: the groups that are multiplied, then -1; null: all, of which any may have rows.
  const int32_t* present = nullptr;
  int64_t most_listed = 0;  // of `present`; 0: min(groups, rows)
  const int32_t* matrices =
      nullptr;  // [groups], device: the matrix, and bias, of each group in the list; null: its own
  // [rows], device: the row of x of each row of the product; null: its own, and x has as many.
  const int32_t* from = nullptr;
  int64_t x_rows = 0;          // with `from`
  void* room = nullptr;        // with `from`: [rows, k] of `type`, where the CPU brings the rows together; null on CUDA
  const void* bias = nullptr;  // [n] of `type`, of group 0; null: none
  uint64_t bias_stride = 0;    // bytes from a group's bias to the next one's
  Activation activation = Activation::kSilu;  // of grouped_gated_product() alone

  int64_t listed() const { return most_listed > 0 ? most_listed : groups < rows ? groups : rows; }
};
void grouped_product(const GroupedProductParams& params, Stream& stream);

// Computes activated [rows, n / 2] = activation(gate) * up in `type`, as grouped_product() and then silu_mul() do: gate
// and up, the halves of a row of the product, are rounded to `type` first. The product's output is scratch. REQUIRES:
// out_type = type.
void grouped_gated_product(const GroupedProductParams& params, void* activated, Stream& stream);

// Where products run, for their memory.
struct ProductPlace {
  Backend backend = Backend::kCpu;
  int unpacking_threads = 0;  // the CPU's, if weights are kept quantised; 0: they are plain
};

// Device memory of products in addition to their operands, counted by --vram: the workspace that the first product on
// `stream` will allocate and the stream then keeps (0 if it exists); and what a kind of product needs: on a GPU for the
// duration of the check of the first one, on a CPU for unpacked weights, which its threads keep. Of products with fewer
// rows, too. The pointers in `params` are not read.
uint64_t product_workspace_bytes(Stream& stream);
uint64_t product_kind_bytes(const ProductPlace& place, const ProductParams& params);

// The kinds of product on the stream so far for which no algorithm of the library passes the check, so that a slower
// kernel of ours runs them: "64 x 1536 x 576 bf16 to f32". Empty on the CPU. Thread: the stream's.
std::vector<std::string> plain_products(Stream& stream);

// The version of the library that determines the product bits. 0: our own bodies compute them.
uint64_t product_library_version(Backend backend);

}  // namespace headrace
