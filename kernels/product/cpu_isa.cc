// A product as dot products: x and w are both rows along k, so nothing needs packing. The sum of an output element: one
// vector accumulator adds vectors of k in ascending order (the last one padded with zeros), then sum_each (simd.h) adds
// its lanes. An element's bits depend on that order alone; tiles and blocks only decide which elements are computed
// together.
#include "kernels/product/cpu_isa.h"

#include "kernels/cpu/simd.h"
#include "kernels/weights/groups.h"

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

// Most rows that multiply blocks directly, where each tile unpacks its weights again. For more rows the weights are
// unpacked to memory first.
constexpr int kMaxBlockRows = 8, kBlockTileRows = 4;

// Tiles write their sums to a block of fp32, from which whole rows are finished.
constexpr int64_t kBlockCols = 48;
constexpr int64_t kBlockStride = kBlockCols + 4;  // a tile writes four columns, so the last one writes beyond the block
constexpr int64_t kBlockRows = 24;                // at most
constexpr int64_t kBlockBytes = 14 * 1024;        // of x: half of the first-level cache

// Reads and multiplies vectors, kStep elements of k at a time. Weights that were unpacked from blocks may be f32.
template <typename T, typename W = T>
struct DotWidened {
  using Element = T;
  using Weight = W;
  using Operand = vf;
  static constexpr int kStep = kLanes;
  template <typename U>
  HEADRACE_SIMD Operand read(const U* p) {
    return load(p);
  }
  template <typename U>
  HEADRACE_SIMD Operand read(const U* p, int64_t count) {
    return load(p, count);
  }
  template <typename Group>
  HEADRACE_SIMD Operand read_group(const Group& group, int i) {
    return group.at(i);
  }
  HEADRACE_SIMD vf add(vf acc, Operand a, Operand b) { return fma(a, b, acc); }
};
using DotF32 = DotWidened<float>;
using DotF16 = DotWidened<f16>;

#if defined(__AVX512BF16__)
// Pairs along k in one instruction, which flushes subnormals to zero: values below 2^-126, negligible in a sum.
struct DotBf16 {
  using Element = bf16;
  using Weight = bf16;
  using Operand = vu;
  static constexpr int kStep = 2 * kLanes;
  HEADRACE_SIMD Operand read(const bf16* p) {
    Operand v;
    memcpy(&v, p, sizeof v);
    return v;
  }
  HEADRACE_SIMD Operand read(const bf16* p, int64_t count) {
    Operand v = {};
    memcpy(&v, p, static_cast<size_t>(count) * 2);
    return v;
  }
  template <typename Group>
  HEADRACE_SIMD Operand read_group(const Group& group, int i) {
    return (Operand)_mm512_cvtne2ps_pbh((__m512)group.at(i + kLanes), (__m512)group.at(i));
  }
  HEADRACE_SIMD vf add(vf acc, Operand a, Operand b) {
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
  }
};
#else
using DotBf16 = DotWidened<bf16>;
#endif

// Distance at which w is prefetched into the second-level cache: a whole number of tiles, so that each line is
// requested once and in order, and long enough to hide the memory's latency. It doubles the bandwidth of a single row.
constexpr int64_t kFetchBytes = 8 * 1024;
constexpr int kSecondLevel = 2;  // as __builtin_prefetch names it

constexpr int64_t kLineBytes = 64;

// acc += one step of x rows times w rows. `count`: elements of k in the step, kStep in all but the last; no others are
// read.
template <typename Dot, int kRows, int kCols, typename... Count>
HEADRACE_SIMD void add_step(const typename Dot::Element* x, const typename Dot::Weight* w, int64_t k,
                            vf (&acc)[kRows][kCols], Count... count) {
  typename Dot::Operand b[kCols];
#pragma GCC unroll 8
  for (int c = 0; c < kCols; ++c) b[c] = Dot::read(w + c * k, count...);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const typename Dot::Operand a = Dot::read(x + r * k, count...);
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) acc[r][c] = Dot::add(acc[r][c], a, b[c]);
  }
}

template <int kRows, int kCols>
HEADRACE_SIMD void put_sums(const vf (&acc)[kRows][kCols], float* sums) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const vf(&row)[kCols] = acc[r];
    const v4 four = sum_each(row[0], row[kCols > 1 ? 1 : 0], row[kCols > 2 ? 2 : 0], row[kCols > 3 ? 3 : 0]);
    memcpy(sums + r * kBlockStride, &four, sizeof four);
  }
}

// sums[r * kBlockStride + c] = x row r . w row c, for kRows x kCols of them; writes 4 columns whatever kCols is.
// kFetch: prefetches as much of w as it reads, `fetch` bytes ahead.
template <typename Dot, int kRows, int kCols, bool kFetch>
void tile(const typename Dot::Element* x, const typename Dot::Weight* w, int64_t k, int64_t fetch, float* sums) {
  static_assert(kCols <= 4);
  vf acc[kRows][kCols];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) acc[r][c] = zero();
  }
  constexpr int64_t kStepBytes = Dot::kStep * int64_t{sizeof(typename Dot::Weight)};
  const char* ahead = reinterpret_cast<const char*>(w) + fetch;
  int64_t i = 0;
  for (; i + Dot::kStep <= k; i += Dot::kStep) {
    if constexpr (kFetch) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) __builtin_prefetch(ahead + c * kStepBytes, 0, kSecondLevel);
      ahead += kCols * kStepBytes;
    }
    add_step<Dot>(x + i, w + i, k, acc);
  }
  if (i < k) add_step<Dot>(x + i, w + i, k, acc, k - i);
  put_sums(acc, sums);
}

constexpr int at_most_a_tile(int rows) { return rows < kTileRows ? rows : kTileRows; }

// The first rows, at most kTileRows, against one column of tiles.
template <typename Dot, int kCols, bool kFetch>
void tile_of_rows(const typename Dot::Element* x, const typename Dot::Weight* w, int64_t k, int64_t rows, int64_t fetch,
                  float* sums) {
  static_assert(kTileRows <= 6);
  switch (rows) {
    case 1:
      return tile<Dot, at_most_a_tile(1), kCols, kFetch>(x, w, k, fetch, sums);
    case 2:
      return tile<Dot, at_most_a_tile(2), kCols, kFetch>(x, w, k, fetch, sums);
    case 3:
      return tile<Dot, at_most_a_tile(3), kCols, kFetch>(x, w, k, fetch, sums);
    case 4:
      return tile<Dot, at_most_a_tile(4), kCols, kFetch>(x, w, k, fetch, sums);
    case 5:
      return tile<Dot, at_most_a_tile(5), kCols, kFetch>(x, w, k, fetch, sums);
    default:
      return tile<Dot, kTileRows, kCols, kFetch>(x, w, k, fetch, sums);
  }
}

// All rows of a block against one column of tiles. fetch > 0: the first tile prefetches; the others find w in a cache.
template <typename Dot, int kCols>
void tile_column(const typename Dot::Element* x, const typename Dot::Weight* w, int64_t k, int64_t rows, int64_t fetch,
                 float* sums) {
  int64_t row = 0;
  if constexpr (kCols > 1) {
    if (fetch > 0) {
      tile_of_rows<Dot, kCols, true>(x, w, k, rows, fetch, sums);
      row = kTileRows;
    }
  }
  for (; row < rows; row += kTileRows) {
    tile_of_rows<Dot, kCols, false>(x + row * k, w, k, rows - row, 0, sums + row * kBlockStride);
  }
}

// out = round(sums + bias + residual) for one row of a block.
template <typename T, typename Out>
void finish_row(const ProductPart& part, const float* sums, int64_t row, int64_t col, int64_t cols) {
  const T* bias = static_cast<const T*>(part.bias);
  const Out* residual = static_cast<const Out*>(part.residual);
  Out* out = static_cast<Out*>(part.out) + row * part.n + col;
  for (int64_t c = 0; c < cols; c += kLanes) {
    const int64_t count = cols - c < kLanes ? cols - c : kLanes;
    vf v = load(sums + c);  // the rows of a block are padded to whole vectors
    if (bias != nullptr) v += load_some(bias + col + c, count);
    if (residual != nullptr) v += load_some(residual + row * part.n + col + c, count);
    store_some(out + c, v, count);
  }
}

template <typename Dot, typename Out>
void part_of(const ProductPart& part) {
  using T = typename Dot::Element;
  static_assert(kBlockCols % kLanes == 0 && kBlockCols % kTileCols == 0);
  alignas(64) float sums[kBlockRows * kBlockStride];
  const int64_t k = part.k, row_bytes = k * int64_t{sizeof(T)};
  const int64_t fit = kBlockBytes / row_bytes / kTileRows * kTileRows;
  const int64_t block_rows = fit < kTileRows ? kTileRows : fit > kBlockRows ? kBlockRows / kTileRows * kTileRows : fit;
  const int64_t fetch_cols = (kFetchBytes / (kTileCols * row_bytes) + 1) * kTileCols;
  for (int64_t row = part.row_begin; row < part.row_end; row += block_rows) {
    const int64_t rows = part.row_end - row < block_rows ? part.row_end - row : block_rows;
    const int64_t fetch_end = row == part.row_begin && !part.unpacked ? part.col_end - fetch_cols : part.col_begin;
    const T* x = static_cast<const T*>(part.x) + row * k;
    for (int64_t col = part.col_begin; col < part.col_end; col += kBlockCols) {
      const int64_t cols = part.col_end - col < kBlockCols ? part.col_end - col : kBlockCols;
      const auto* w = static_cast<const typename Dot::Weight*>(part.w) + (col - part.col_begin) * k;
      int64_t c = 0;
      for (; c + kTileCols <= cols; c += kTileCols) {
        const int64_t fetch = col + c < fetch_end ? fetch_cols * row_bytes : 0;
        tile_column<Dot, kTileCols>(x, w + c * k, k, rows, fetch, sums + c);
      }
      for (; c < cols; ++c) tile_column<Dot, 1>(x, w + c * k, k, rows, 0, sums + c);
      for (int64_t r = 0; r < rows; ++r) finish_row<T, Out>(part, sums + r * kBlockStride, row + r, col, cols);
    }
  }
}

template <typename Dot>
void part_with(const ProductPart& part) {
  return part.out_type == part.type ? part_of<Dot, typename Dot::Element>(part) : part_of<Dot, float>(part);
}

void part(const ProductPart& part) {
  switch (part.type) {
    case DType::kF32:
      return part_with<DotF32>(part);
    case DType::kF16:
      return part.w_type == DType::kF32 ? part_with<DotWidened<f16, float>>(part) : part_with<DotF16>(part);
    case DType::kBF16:
      return part.w_type == DType::kF32 ? part_with<DotWidened<bf16, float>>(part) : part_with<DotBf16>(part);
    default:
      break;
  }
}

// ---- Weights in blocks, multiplied directly by few rows -------------------------------------------------------------

// Like tile(), with w in blocks; a row of w has row_bytes bytes. The order of sums is the same.
template <typename Dot, typename Type, int kRows, int kCols>
void tile_of_blocks(const typename Dot::Element* x, const uint8_t* w, int64_t k, int64_t row_bytes, float* sums) {
  constexpr int kGroups = Type::kElements / kGroup;
  const int64_t tile_bytes = kCols * row_bytes;
  vf acc[kRows][kCols] = {};
  const uint8_t* ahead = w + (kFetchBytes / tile_bytes + 1) * tile_bytes;
  for (int64_t i = 0; i < k; i += Type::kElements, w += Type::kBytes) {
    typename Type::Block blocks[kCols];
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) blocks[c].read(w + c * row_bytes);
    for (int64_t fetched = 0; fetched < kCols * Type::kBytes; fetched += kLineBytes) {
      __builtin_prefetch(ahead + fetched, 0, kSecondLevel);
    }
    ahead += kCols * Type::kBytes;
#pragma GCC unroll kUnrolledGroups
    for (int number = 0; number < kGroups; ++number) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) {
        typename Type::template Group<RoundF32> group;
        group.read(blocks[c], number);
#pragma GCC unroll 8
        for (int at = 0; at < kGroup; at += Dot::kStep) {
          const typename Dot::Operand b = Dot::read_group(group, at);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            acc[r][c] = Dot::add(acc[r][c], Dot::read(x + r * k + i + number * kGroup + at), b);
          }
        }
      }
    }
  }
  put_sums(acc, sums);
}

// The type in which weights of blocks are multiplied: a product in bf16 rounds them if the instruction set does so at
// no cost.
#if defined(__AVX512BF16__)
template <typename T>
struct DotBlocks : DotF32 {};
template <>
struct DotBlocks<bf16> : DotBf16 {};
#else
template <typename T>
using DotBlocks = DotF32;
#endif

// At most kBlockTileRows rows against one column of tiles.
template <typename Dot, typename Type, int kCols>
void rows_of_blocks(const typename Dot::Element* x, const uint8_t* w, int64_t k, int64_t row_bytes, int64_t rows,
                    float* sums) {
  static_assert(kBlockTileRows == 4);
  switch (rows) {
    case 1:
      return tile_of_blocks<Dot, Type, 1, kCols>(x, w, k, row_bytes, sums);
    case 2:
      return tile_of_blocks<Dot, Type, 2, kCols>(x, w, k, row_bytes, sums);
    case 3:
      return tile_of_blocks<Dot, Type, 3, kCols>(x, w, k, row_bytes, sums);
    default:
      return tile_of_blocks<Dot, Type, 4, kCols>(x, w, k, row_bytes, sums);
  }
}

template <typename T, typename Type>
void part_of_blocks(const ProductPart& part, float* room) {
  using Dot = DotBlocks<T>;
  using X = typename Dot::Element;
  alignas(64) float sums[kMaxBlockRows * kBlockStride];
  const int64_t k = part.k, row_bytes = k / Type::kElements * Type::kBytes, rows = part.row_end - part.row_begin;
  const void* operand = static_cast<const T*>(part.x) + part.row_begin * k;
  if constexpr (sizeof(X) != sizeof(T)) {
    for (int64_t i = 0; i < rows * k; i += kLanes) store(room + i, load(static_cast<const T*>(operand) + i));
    operand = room;
  }
  const X* const x = static_cast<const X*>(operand);
  const auto* w = static_cast<const uint8_t*>(part.w);
  for (int64_t col = part.col_begin; col < part.col_end; col += kBlockCols) {
    const int64_t cols = part.col_end - col < kBlockCols ? part.col_end - col : kBlockCols;
    for (int64_t c = 0; c < cols;) {
      const int64_t tile = c + kTileCols <= cols ? kTileCols : 1;
      for (int64_t r = 0; r < rows; r += kBlockTileRows) {
        const auto run = tile == 1 ? rows_of_blocks<Dot, Type, 1> : rows_of_blocks<Dot, Type, kTileCols>;
        run(x + r * k, w, k, row_bytes, rows - r, sums + r * kBlockStride + c);
      }
      c += tile;
      w += tile * row_bytes;
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float* const from = sums + r * kBlockStride;
      if (part.out_type == part.type) {
        finish_row<T, T>(part, from, part.row_begin + r, col, cols);
      } else {
        finish_row<T, float>(part, from, part.row_begin + r, col, cols);
      }
    }
  }
}

template <typename T>
void blocks_with(const ProductPart& part, WeightType type, float* room) {
  with_blocks_of(type, [&](auto blocks) { part_of_blocks<T, decltype(blocks)>(part, room); });
}

void blocks(const ProductPart& part, WeightType type, float* room) {
  switch (part.type) {
    case DType::kF32:
      return blocks_with<float>(part, type, room);
    case DType::kF16:
      return blocks_with<f16>(part, type, room);
    case DType::kBF16:
      return blocks_with<bf16>(part, type, room);
    default:
      break;
  }
}

DType block_type(DType type) {
  return type == DType::kBF16 && sizeof(DotBlocks<bf16>::Element) == sizeof(bf16) ? type : DType::kF32;
}

}  // namespace

const ProductKernels product_kernels = {part, blocks, kMaxBlockRows, kTileCols, block_type};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
