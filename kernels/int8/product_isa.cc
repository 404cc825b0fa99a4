// The product's tiles: kRows rows of x, widened once for all panels of a part, times some panels of weights. A sum is
// exact, so tiles decide nothing but which elements are computed together.
#include "kernels/cpu/with_type.h"
#include "kernels/int8/cpu_dot.h"
#include "kernels/int8/cpu_isa.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

#if defined(__AVX512VNNI__)
constexpr int kTileRows = 6, kTilePanels = 4;
#elif defined(__AVX512F__)
constexpr int kTileRows = 4, kTilePanels = 4;
#elif defined(__AVX2__)
constexpr int kTileRows = 4, kTilePanels = 1;
#else
constexpr int kTileRows = 2, kTilePanels = 1;
#endif
static_assert(kTileRows <= kMaxInt8TileRows);

// x: rows as Int8Dot::prepare() wrote them. sums: [kRows, kPanels * kPanel].
template <int kRows, int kPanels>
void tile(const int8_t* x, const int8_t* panels, int64_t padded, int64_t panel_bytes, int32_t* sums) {
  constexpr int kVectors = kPanels * kPanelVectors;
  vi acc[kRows][kVectors];
  const int8_t* w[kPanels];
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p) w[p] = panels + p * panel_bytes;
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    const vi first =
        Int8Dot::begin(w[v / kPanelVectors] + padded * kPanel + v % kPanelVectors * kLanes * int{sizeof(int32_t)});
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[r][v] = first;
  }
  const int64_t x_bytes = padded * Int8Dot::kXBytes;
  for (int64_t i = 0; i < padded / 4; ++i) {
    Int8Dot::Weights b[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      b[v] = Int8Dot::read(w[v / kPanelVectors] + (i * kPanel + v % kPanelVectors * kLanes) * 4);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Int8Dot::X a = Int8Dot::repeat(x + r * x_bytes, padded, i);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) acc[r][v] = Int8Dot::add(acc[r][v], a, b[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) store_ints(sums + (r * kVectors + v) * kLanes, acc[r][v]);
  }
}

template <int kPanels>
void tile_of_rows(const int8_t* x, const int8_t* panels, int64_t padded, int64_t panel_bytes, int64_t rows,
                  int32_t* sums) {
  switch (rows) {
    case 1:
      return tile<1, kPanels>(x, panels, padded, panel_bytes, sums);
    case 2:
      return tile < kTileRows < 2 ? kTileRows : 2, kPanels > (x, panels, padded, panel_bytes, sums);
    case 3:
      return tile < kTileRows < 3 ? kTileRows : 3, kPanels > (x, panels, padded, panel_bytes, sums);
    case 4:
      return tile < kTileRows < 4 ? kTileRows : 4, kPanels > (x, panels, padded, panel_bytes, sums);
    case 5:
      return tile < kTileRows < 5 ? kTileRows : 5, kPanels > (x, panels, padded, panel_bytes, sums);
    default:
      return tile<kTileRows, kPanels>(x, panels, padded, panel_bytes, sums);
  }
}

// Scales a row's sums of columns [col, end) and writes them.
template <typename T>
void finish(const Int8Part& part, const int32_t* sums, int64_t row, int64_t col, int64_t end) {
  const vf x_scale = splat(part.x_scales[row]);
  const T* const bias = static_cast<const T*>(part.bias);
  const T* const residual = part.residual == nullptr ? nullptr : static_cast<const T*>(part.residual) + row * part.n;
  T* const out = static_cast<T*>(part.out) + row * part.n;
  for (; col < end; col += kLanes, sums += kLanes) {
    const int64_t count = end - col < kLanes ? end - col : kLanes;
    const vf scale = x_scale * load_some(part.w_scales + col, count) * part.unrotate;
    vf y = __builtin_convertvector(load_ints(sums), vf) * scale;
    if (bias != nullptr) y += load_some(bias + col, count);
    if (residual != nullptr) y += load_some(residual + col, count);
    store_some(out + col, y, count);
  }
}

template <typename T>
void part_of(const Int8Part& part) {
  alignas(64) int32_t sums[kTileRows * kTilePanels * kPanel];
  int8_t* const room = static_cast<int8_t*>(part.room);
  for (int64_t row = part.row_begin; row < part.row_end; row += kTileRows) {
    const int64_t rows = part.row_end - row < kTileRows ? part.row_end - row : kTileRows;
    for (int64_t r = 0; r < rows; ++r) {
      Int8Dot::prepare(part.x + (row + r) * part.padded, part.padded, room + r * part.padded * Int8Dot::kXBytes);
    }
    for (int64_t panel = part.panel_begin; panel < part.panel_end;) {
      const int64_t panels = part.panel_end - panel >= kTilePanels ? kTilePanels : 1;
      const auto run = panels == 1 ? tile_of_rows<1> : tile_of_rows<kTilePanels>;
      run(room, part.panels + panel * part.panel_bytes, part.padded, part.panel_bytes, rows, sums);
      const int64_t col = panel * kPanel, last = (panel + panels) * kPanel;
      for (int64_t r = 0; r < rows; ++r) {
        finish<T>(part, sums + r * panels * kPanel, row + r, col, last < part.n ? last : part.n);
      }
      panel += panels;
    }
  }
}

void part(const Int8Part& part) {
  with_type(part.type, [&](auto t) { part_of<decltype(t)>(part); });
}

}  // namespace

const Int8ProductKernels int8_product_kernels = {part, kTileRows, kTilePanels};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
