// A product as dot products: both x and w are rows along k, so that nothing needs packing. An output element's sum:
// every lane of one vector accumulator takes the k of its own place, vectors of k in ascending order (the last one
// filled up with zeros), then the lanes are added in the order of add_lanes. That order is all that an element's bits
// depend on; tiles and blocks only choose which elements are computed together.
#include "kernels/cpu/product_isa.h"

#include "kernels/cpu/simd.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

// The register tile: rows x cols accumulators, cols operands of w and one of x.
#if defined(__AVX512F__)
constexpr int kTileRows = 6, kTileCols = 4;
#elif defined(__AVX2__)
constexpr int kTileRows = 4, kTileCols = 3;
#else
constexpr int kTileRows = 3, kTileCols = 3;
#endif

constexpr int64_t kBlockCols = 48;          // of the fp32 block between the tiles and the epilogue
constexpr int64_t kBlockRows = 24;          // at most
constexpr int64_t kBlockBytes = 14 * 1024;  // of x: half of the first-level cache

// How one type's vectors are read and multiplied. kStep: k per vector of the type; kSplit: float vectors in one.
struct DotF32 {
  using Element = float;
  using Operand = vf;
  static constexpr int kStep = kLanes, kSplit = 1;
  template <int kPart>
  HEADRACE_SIMD Operand read(const float* p) {
    return load(p);
  }
  template <int kPart>
  HEADRACE_SIMD Operand read(const float* p, int64_t count) {
    return load(p, count);
  }
  HEADRACE_SIMD vf add(vf acc, Operand a, Operand b) { return fma(a, b, acc); }
};

struct DotF16 {
  using Element = f16;
  using Operand = vf;
  static constexpr int kStep = kLanes, kSplit = 1;
  template <int kPart>
  HEADRACE_SIMD Operand read(const f16* p) {
    return load(p);
  }
  template <int kPart>
  HEADRACE_SIMD Operand read(const f16* p, int64_t count) {
    return load(p, count);
  }
  HEADRACE_SIMD vf add(vf acc, Operand a, Operand b) { return fma(a, b, acc); }
};

#if defined(__AVX512BF16__)
// Pairs along k in one instruction, which reads and gives subnormals as zero: below 2^-126, nothing a sum would notice.
struct DotBf16 {
  using Element = bf16;
  using Operand = vu;
  static constexpr int kStep = 2 * kLanes, kSplit = 1;
  template <int kPart>
  HEADRACE_SIMD Operand read(const bf16* p) {
    Operand v;
    memcpy(&v, p, sizeof v);
    return v;
  }
  template <int kPart>
  HEADRACE_SIMD Operand read(const bf16* p, int64_t count) {
    Operand v = {};
    memcpy(&v, p, size_t(count) * 2);
    return v;
  }
  HEADRACE_SIMD vf add(vf acc, Operand a, Operand b) {
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
  }
};
#else
// A vector of pairs along k is two of floats: the even ones by a shift, the odd ones by a mask.
struct DotBf16 {
  using Element = bf16;
  using Operand = vf;
  static constexpr int kStep = 2 * kLanes, kSplit = 2;
  template <int kPart>
  HEADRACE_SIMD Operand widen(vu pairs) {
    return float_of(kPart == 0 ? pairs << 16 : pairs & 0xffff0000u);
  }
  template <int kPart>
  HEADRACE_SIMD Operand read(const bf16* p) {
    vu v;
    memcpy(&v, p, sizeof v);
    return widen<kPart>(v);
  }
  template <int kPart>
  HEADRACE_SIMD Operand read(const bf16* p, int64_t count) {
    vu v = {};
    memcpy(&v, p, size_t(count) * 2);
    return widen<kPart>(v);
  }
  HEADRACE_SIMD vf add(vf acc, Operand a, Operand b) { return fma(a, b, acc); }
};
#endif

// Lanes l and l + half are added until one is left.
HEADRACE_SIMD float add_lanes(vf v) { return sum(v); }

template <typename Dot, int kRows, int kCols, int kPart>
HEADRACE_SIMD void add_step(const typename Dot::Element* x, const typename Dot::Element* w, int64_t k,
                            vf (&acc)[kRows][kCols]) {
  typename Dot::Operand b[kCols];
#pragma GCC unroll 8
  for (int c = 0; c < kCols; ++c) b[c] = Dot::template read<kPart>(w + c * k);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const typename Dot::Operand a = Dot::template read<kPart>(x + r * k);
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) acc[r][c] = Dot::add(acc[r][c], a, b[c]);
  }
}

template <typename Dot, int kRows, int kCols, int kPart>
HEADRACE_SIMD void add_last(const typename Dot::Element* x, const typename Dot::Element* w, int64_t k, int64_t count,
                            vf (&acc)[kRows][kCols]) {
  typename Dot::Operand b[kCols];
#pragma GCC unroll 8
  for (int c = 0; c < kCols; ++c) b[c] = Dot::template read<kPart>(w + c * k, count);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const typename Dot::Operand a = Dot::template read<kPart>(x + r * k, count);
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) acc[r][c] = Dot::add(acc[r][c], a, b[c]);
  }
}

// sums[r * kBlockCols + c] = x row r . w row c, for kRows x kCols of them.
template <typename Dot, int kRows, int kCols>
void tile(const typename Dot::Element* x, const typename Dot::Element* w, int64_t k, float* sums) {
  vf acc[kRows][kCols];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) acc[r][c] = zero();
  }
  int64_t i = 0;
  for (; i + Dot::kStep <= k; i += Dot::kStep) {
    add_step<Dot, kRows, kCols, 0>(x + i, w + i, k, acc);
    if constexpr (Dot::kSplit == 2) add_step<Dot, kRows, kCols, 1>(x + i, w + i, k, acc);
  }
  if (i < k) {
    add_last<Dot, kRows, kCols, 0>(x + i, w + i, k, k - i, acc);
    if constexpr (Dot::kSplit == 2) add_last<Dot, kRows, kCols, 1>(x + i, w + i, k, k - i, acc);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) sums[r * kBlockCols + c] = add_lanes(acc[r][c]);
  }
}

// All rows of a block against one column of tiles.
template <typename Dot, int kCols>
void tile_column(const typename Dot::Element* x, const typename Dot::Element* w, int64_t k, int64_t rows, float* sums) {
  for (; rows >= kTileRows; rows -= kTileRows, x += kTileRows * k, sums += kTileRows * kBlockCols) {
    tile<Dot, kTileRows, kCols>(x, w, k, sums);
  }
  switch (rows) {
    case 1:
      return tile<Dot, 1, kCols>(x, w, k, sums);
    case 2:
      return tile<Dot, 2, kCols>(x, w, k, sums);
    case 3:
      if constexpr (kTileRows > 3) return tile<Dot, 3, kCols>(x, w, k, sums);
      break;
    case 4:
      if constexpr (kTileRows > 4) return tile<Dot, 4, kCols>(x, w, k, sums);
      break;
    case 5:
      if constexpr (kTileRows > 5) return tile<Dot, 5, kCols>(x, w, k, sums);
      break;
    default:
      break;
  }
}

// out = round(sums + bias + residual) for one row of a block.
template <typename T, typename Out>
void finish_row(const ProductPart& part, const float* sums, int64_t row, int64_t col, int64_t cols) {
  const T* bias = static_cast<const T*>(part.bias);
  const T* residual = static_cast<const T*>(part.residual);
  Out* out = static_cast<Out*>(part.out) + row * part.n + col;
  for (int64_t c = 0; c < cols; c += kLanes) {
    const int64_t count = cols - c < kLanes ? cols - c : kLanes;
    vf v = load(sums + c);  // the block's rows have room for whole vectors
    if (bias != nullptr) v += load_some(bias + col + c, count);
    if (residual != nullptr) v += load_some(residual + row * part.n + col + c, count);
    store_some(out + c, v, count);
  }
}

template <typename Dot, typename Out>
void part_of(const ProductPart& part) {
  using T = typename Dot::Element;
  static_assert(kBlockCols % kLanes == 0 && kBlockCols % kTileCols == 0);
  alignas(64) float sums[kBlockRows * kBlockCols];
  const int64_t k = part.k;
  const int64_t fit = kBlockBytes / (k * int64_t(sizeof(T))) / kTileRows * kTileRows;
  const int64_t block_rows = fit < kTileRows ? kTileRows : fit > kBlockRows ? kBlockRows / kTileRows * kTileRows : fit;
  for (int64_t row = part.row_begin; row < part.row_end; row += block_rows) {
    const int64_t rows = part.row_end - row < block_rows ? part.row_end - row : block_rows;
    const T* x = static_cast<const T*>(part.x) + row * k;
    for (int64_t col = part.col_begin; col < part.col_end; col += kBlockCols) {
      const int64_t cols = part.col_end - col < kBlockCols ? part.col_end - col : kBlockCols;
      const T* w = static_cast<const T*>(part.w) + col * k;
      int64_t c = 0;
      for (; c + kTileCols <= cols; c += kTileCols) tile_column<Dot, kTileCols>(x, w + c * k, k, rows, sums + c);
      for (; c < cols; ++c) tile_column<Dot, 1>(x, w + c * k, k, rows, sums + c);
      for (int64_t r = 0; r < rows; ++r) finish_row<T, Out>(part, sums + r * kBlockCols, row + r, col, cols);
    }
  }
}

void part(const ProductPart& part) {
  const bool same = part.out_type == part.type;
  switch (part.type) {
    case DType::kF32:
      return part_of<DotF32, float>(part);
    case DType::kF16:
      return same ? part_of<DotF16, f16>(part) : part_of<DotF16, float>(part);
    case DType::kBF16:
      return same ? part_of<DotBf16, bf16>(part) : part_of<DotBf16, float>(part);
  }
}

}  // namespace

const ProductKernels product_kernels = {part, kTileCols};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
