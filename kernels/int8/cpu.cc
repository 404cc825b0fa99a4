#include <algorithm>
#include <cstring>

#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/thread_room.h"
#include "kernels/elementwise/cpu_isa.h"
#include "kernels/int8/bodies.h"
#include "kernels/int8/cpu_isa.h"
#include "kernels/int8/layout.h"
#include "kernels/weights/cpu_isa.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

// A row in f32 and a panel's bytes.
uint64_t convert_room_bytes(int64_t padded) {
  return static_cast<uint64_t>(padded) * (sizeof(float) + static_cast<uint64_t>(kPanelRows));
}

// Converts rows that the caller writes to values().
class RowConverter {
 public:
  explicit RowConverter(int64_t cols)
      : cols_(cols),
        padded_(padded_int8_cols(cols)),
        kernels_(HEADRACE_PICK_ISA(int8_convert_kernels)),
        values_(reinterpret_cast<float*>(room_of_thread(convert_room_bytes(padded_)))) {}
  float* values() const { return values_; }
  int8_t* panel_rows() const { return reinterpret_cast<int8_t*>(values_ + padded_); }  // room for [16, padded]
  int64_t padded() const { return padded_; }
  const Int8ConvertKernels& kernels() const { return kernels_; }

  float quantise(int8_t* bytes) const {
    std::fill(values_ + cols_, values_ + padded_, 0.0f);
    return kernels_.quantise(values_, padded_, rotation_block(cols_), bytes);
  }

 private:
  const int64_t cols_, padded_;
  const Int8ConvertKernels& kernels_;
  float* const values_;
};

// Row `row` of a group's matrix in f32.
void unpack_row(const Int8WeightParams& params, int64_t group, int64_t row, float* out) {
  const WeightPart* part = params.weight.parts;
  for (; row >= part->rows; ++part) row -= part->rows;
  const WeightTypeInfo& info = weight_type_info(part->type);
  const int64_t blocks = params.weight.cols / info.block_elements;
  const std::byte* const from = static_cast<const std::byte*>(part->data) +
                                static_cast<uint64_t>(group) * params.stride + row * blocks * info.block_bytes;
  if (is_plain(part->type)) {
    HEADRACE_PICK_ISA(elementwise_kernels).convert(params.type, DType::kF32, from, out, params.weight.cols);
  } else {
    HEADRACE_PICK_ISA(weight_kernels).unpack(part->type, from, blocks, DType::kF32, DType::kF32, out);
  }
}

// How a product is divided. It never changes a bit.
constexpr int64_t kPartBytes = 192 * 1024;  // of panels, which stay in the second-level cache
constexpr int64_t kPartsPerThread = 4;      // so that a delayed thread does not delay the rest

int64_t whole_tiles(int64_t count, int64_t tile) { return std::max<int64_t>(1, count / tile) * tile; }

}  // namespace

uint64_t int8_thread_bytes(int64_t cols) {
  const int64_t padded = padded_int8_cols(cols);
  return whole_pages(std::max(convert_room_bytes(padded), static_cast<uint64_t>(int8_room_bytes(padded))));
}

void int8_weight(const Int8WeightParams& params, ThreadPool& pool) {
  const int64_t n = params.weight.rows(), panels = ceil_div(n, kPanelRows);
  pool.parallel_for(params.groups * panels, [&](int64_t index, int) {
    const RowConverter converter(params.weight.cols);
    const int64_t padded = converter.padded(), group = index / panels, panel = index % panels;
    int8_t* const rows = converter.panel_rows();
    for (int64_t i = 0; i < kPanelRows; ++i) {
      const int64_t row = panel * kPanelRows + i;
      if (row >= n) {
        std::memset(rows + i * padded, 0, static_cast<size_t>(padded));
        continue;
      }
      unpack_row(params, group, row, converter.values());
      params.out.scales[group * n + row] = converter.quantise(rows + i * padded);
    }
    converter.kernels().make_panel(rows, padded, params.out.values + index * panel_bytes(padded));
  });
}

void int8_activation(const Int8ActivationParams& params, ThreadPool& pool) {
  constexpr int64_t kRunElements = 4096;
  const ElementwiseKernels& elementwise = HEADRACE_PICK_ISA(elementwise_kernels);
  const int64_t run = std::max<int64_t>(1, kRunElements / params.cols);
  pool.parallel_for(ceil_div(params.rows, run), [&](int64_t index, int) {
    const RowConverter converter(params.cols);
    const int64_t end = std::min(params.rows, (index + 1) * run);
    for (int64_t row = index * run; row < end; ++row) {
      const std::byte* const x = at(params.x, row * params.cols, params.type);
      if (params.input == Int8Input::kGated) {
        const std::byte* const gate = at(params.x, 2 * row * params.cols, params.type);
        elementwise.silu_mul(params.activation, params.type, DType::kF32, gate, at(gate, params.cols, params.type),
                             converter.values(), params.cols);
      } else if (params.input == Int8Input::kNormed) {
        elementwise.rms_norm({params.type, params.type, DType::kF32}, x, params.norm, converter.values(), params.cols,
                             params.eps);
      } else {
        elementwise.convert(params.type, DType::kF32, x, converter.values(), params.cols);
      }
      params.out.scales[row] = converter.quantise(params.out.values + row * converter.padded());
    }
  });
}

void int8_product(const Int8ProductParams& params, ThreadPool& pool) {
  const Int8ProductKernels& kernels = HEADRACE_PICK_ISA(int8_product_kernels);
  const int64_t padded = padded_int8_cols(params.k), panels = ceil_div(params.n, kPanelRows);
  Int8Part whole{};
  whole.x = params.x.values;
  whole.x_scales = params.x.scales;
  whole.panels = params.weight.values;
  whole.w_scales = params.weight.scales;
  whole.bias = params.bias;
  whole.residual = params.residual;
  whole.out = params.out;
  whole.type = params.type;
  whole.n = params.n;
  whole.padded = padded;
  whole.panel_bytes = panel_bytes(padded);
  whole.unrotate = 1.0f / static_cast<float>(rotation_block(params.k));
  const int64_t wanted = pool.threads() == 1 ? 1 : pool.threads() * kPartsPerThread;
  const int64_t most = whole_tiles(kPartBytes / whole.panel_bytes, kernels.tile_panels);
  const int64_t part_panels = std::min(most, whole_tiles(ceil_div(panels, wanted), kernels.tile_panels));
  const int64_t across = ceil_div(panels, part_panels);
  const int64_t part_rows =
      whole_tiles(ceil_div(params.rows, ceil_div(wanted, across)) + kernels.tile_rows - 1, kernels.tile_rows);
  pool.parallel_for(across * ceil_div(params.rows, part_rows), [&](int64_t index, int) {
    Int8Part part = whole;
    part.panel_begin = index % across * part_panels;
    part.panel_end = std::min(panels, part.panel_begin + part_panels);
    part.row_begin = index / across * part_rows;
    part.row_end = std::min(params.rows, part.row_begin + part_rows);
    part.room = room_of_thread(static_cast<uint64_t>(int8_room_bytes(padded)));
    kernels.part(part);
  });
}

void int8_spread(const Int8SpreadParams& params, ThreadPool& pool) {
  for (int64_t g = 0; g < params.groups.count; ++g) {
    params.groups.first[g] = params.begin[g];
    params.groups.end[g] = params.begin[g + 1];
  }
  const int64_t padded = padded_int8_cols(params.cols);
  for_rows(pool, params.rows * params.used, padded, [&](int64_t pair) {
    const int64_t row = pair / params.used, place = params.places[pair];
    std::memcpy(params.out.values + place * padded, params.x.values + row * padded, static_cast<size_t>(padded));
    params.out.scales[place] = params.x.scales[row];
  });
}

void int8_grouped_product(const Int8GroupedProductParams& params, ThreadPool& pool) {
  const int64_t padded = padded_int8_cols(params.k);
  const auto matrix_bytes = static_cast<int64_t>(int8_values_bytes(Backend::kCpu, params.n, params.k));
  for (int64_t g = 0; g < params.groups.count; ++g) {
    const int64_t first = params.groups.first[g], rows = params.groups.end[g] - first;
    if (rows == 0) continue;
    Int8ProductParams product{};
    product.x = {params.x.values + first * padded, params.x.scales + first};
    product.weight = {params.weight.values + g * matrix_bytes, params.weight.scales + g * params.n};
    if (params.bias != nullptr)
      product.bias = static_cast<const std::byte*>(params.bias) + static_cast<uint64_t>(g) * params.bias_stride;
    product.out = at(params.out, first * params.n, params.type);
    product.type = params.type;
    product.rows = rows;
    product.n = params.n;
    product.k = params.k;
    int8_product(product, pool);
  }
}

}  // namespace headrace::kernels::cpu
