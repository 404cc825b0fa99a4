#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/int8/bodies.h"
#include "kernels/int8/packed_pair.cuh"
#include "kernels/int8/pair.cuh"
#include "kernels/weights/blocks.h"

namespace headrace::kernels::cuda {

namespace {

struct PartCall {
  const void* data;
  int64_t rows, first_row;  // of the part; its first in the matrix
  DType type;               // of a plain part
  bool aligned;
  PairShape shape;
  Int8Rows out;
  uint64_t stride;  // of a group: data, values and scales
  int64_t values_apart, rows_apart;
};

// A call with the places of the block's group.
__device__ PartCall of_group(const PartCall& call) {
  PartCall own = call;
  own.data = static_cast<const char*>(call.data) + blockIdx.y * call.stride;
  own.out.values += blockIdx.y * call.values_apart;
  own.out.scales += blockIdx.y * call.rows_apart;
  return own;
}

// Rows g and g + 8 of 16 rows of the part, for a block 8 t + g; the second may not exist.
template <typename Values>
struct WeightPair {
  static constexpr int kRows = 2;
  static constexpr bool kNormed = false;
  const PartCall& p;
  const Values& values;
  int64_t row;  // of the matrix
  bool both;

  __device__ WeightPair(const PartCall& of, const Values& from, int64_t part_row)
      : p(of), values(from), row(of.first_row + part_row), both(part_row + 8 < of.rows) {}
  __device__ void read(int col, float (&low)[kChunk], float (&high)[kChunk]) const { values.read(col, low, high); }
  __device__ void write_scale(int r, float scale) const {
    if (r == 0 || both) p.out.scales[row + 8 * r] = scale;
  }
  __device__ void write(int r, int col, uint2 words) const {
    if (r == 1 && !both) return;
    *reinterpret_cast<uint2*>(p.out.values + weight_place(row + 8 * r, col, p.shape.padded)) = words;
  }
};

struct PlainPair {
  const PartCall& p;
  int64_t row;

  __device__ void read(int col, float (&low)[kChunk], float (&high)[kChunk]) const {
    const int count = chunk_count(p.shape.cols, col);
    load_chunk(p.type, p.data, row * p.shape.cols + col, count, p.aligned, low);
    load_chunk(p.type, p.data, (row + 8) * p.shape.cols + col, row + 8 < p.rows ? count : 0, p.aligned, high);
  }
};

__device__ int64_t first_row_of_block() {
  return static_cast<int64_t>(blockIdx.x) / 8 * kTileRows + static_cast<int64_t>(blockIdx.x) % 8;
}

// Grid: pairs of rows x groups.
template <WeightType kType, bool kOnce>
__global__ void __launch_bounds__(pair_bounds(kOnce)) int8_weight_kernel(const __grid_constant__ PartCall all) {
  const PartCall p = of_group(all);
  const int64_t row = first_row_of_block();
  if (row >= p.rows) return;
  if constexpr (packed_kind(kType).bits == 16) {
    const PlainPair values{p, row};
    convert_rows<kOnce>(WeightPair<PlainPair>(p, values, row), p.shape);
  } else {
    const PackedPair<kType> values(p.data, p.shape.cols, row);
    convert_rows<kOnce>(WeightPair<PackedPair<kType>>(p, values, row), p.shape);
  }
}

// =====================================================================================================================

template <bool kOnce>
void (*weight_kernel_of(WeightType type))(PartCall) {
  using enum WeightType;
  constexpr void (*kKernels[])(PartCall) = {
      int8_weight_kernel<kQ4_0, kOnce>,   int8_weight_kernel<kQ4_1, kOnce>,  int8_weight_kernel<kQ5_0, kOnce>,
      int8_weight_kernel<kQ5_1, kOnce>,   int8_weight_kernel<kQ8_0, kOnce>,  int8_weight_kernel<kQ4K, kOnce>,
      int8_weight_kernel<kQ5K, kOnce>,    int8_weight_kernel<kQ6K, kOnce>,   int8_weight_kernel<kQ2K, kOnce>,
      int8_weight_kernel<kQ3K, kOnce>,    int8_weight_kernel<kIQ4NL, kOnce>, int8_weight_kernel<kIQ4XS, kOnce>,
      int8_weight_kernel<kIQ2XXS, kOnce>, int8_weight_kernel<kIQ2XS, kOnce>, int8_weight_kernel<kIQ2S, kOnce>,
      int8_weight_kernel<kIQ3XXS, kOnce>, int8_weight_kernel<kIQ3S, kOnce>,  int8_weight_kernel<kMXFP4, kOnce>};
  return is_plain(type) ? int8_weight_kernel<kF32, kOnce> : kKernels[quantised_index(type)];
}

}  // namespace

void int8_weight(const Int8WeightParams& params, Stream& stream) {
  const int64_t cols = params.weight.cols;
  PartCall call{};
  call.type = params.type;
  call.shape = pair_shape(cols);
  call.out = params.out;
  call.stride = params.stride;
  call.rows_apart = params.weight.rows();
  call.values_apart = static_cast<int64_t>(int8_values_bytes(Backend::kCuda, call.rows_apart, cols));
  for (int i = 0; i < params.weight.count; ++i) {
    const WeightPart& part = params.weight.parts[i];
    call.data = part.data;
    call.rows = part.rows;
    call.aligned = is_plain(part.type) && chunks_aligned(part.data, params.type, cols);
    if (part.rows > 0) {
      launch_on(cuda_stream(stream), "int8_weight",
                {ceil_div(part.rows, kTileRows) * 8, params.groups, pair_threads(call.shape)},
                cols <= kMaxKeptCols ? weight_kernel_of<true>(part.type) : weight_kernel_of<false>(part.type), call);
    }
    call.first_row += part.rows;
  }
}

}  // namespace headrace::kernels::cuda
