#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/with_type.cuh"
#include "kernels/elementwise/silu.cuh"
#include "kernels/int8/bodies.h"
#include "kernels/int8/pair.cuh"

namespace headrace::kernels::cuda {

namespace {

struct Activation {
  Int8ActivationParams call;
  PairShape shape;
  bool aligned;
};

// Rows 2 p and 2 p + 1 for a block p.
template <typename T, Int8Input kInput>
struct ActivationPair {
  static constexpr bool kNormed = kInput == Int8Input::kNormed;
  const Activation& p;
  int64_t row;
  bool both;

  __device__ explicit ActivationPair(const Activation& of)
      : p(of), row(2 * static_cast<int64_t>(blockIdx.x)), both(row + 1 < of.call.rows) {}
  __device__ float eps() const { return p.call.eps; }

  __device__ void read_row(int64_t of_row, int col, float (&values)[kChunk]) const {
    const T* const x = static_cast<const T*>(p.call.x);
    const int count = chunk_count(p.call.cols, col);
    if constexpr (kInput == Int8Input::kGated) {
      float up[kChunk];
      load_chunk(x + 2 * of_row * p.call.cols + col, count, p.aligned, values);
      load_chunk(x + (2 * of_row + 1) * p.call.cols + col, count, p.aligned, up);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) values[i] = i < count ? silu_times(values[i], up[i]) : 0.0f;
    } else {
      load_chunk(x + of_row * p.call.cols + col, count, p.aligned, values);
    }
  }
  __device__ void read(int col, float (&low)[kChunk], float (&high)[kChunk]) const {
    read_row(row, col, low);
    if (both) {
      read_row(row + 1, col, high);
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) high[i] = 0.0f;
    }
  }
  __device__ void weight(int col, float (&values)[kChunk]) const {
    load_chunk(static_cast<const T*>(p.call.norm) + col, chunk_count(p.call.cols, col), p.aligned, values);
  }
  __device__ void write_scales(float low, float high) const {
    p.call.out.scales[row] = low;
    if (both) p.call.out.scales[row + 1] = high;
  }
  __device__ void write(int col, uint2 low, uint2 high) const {
    *reinterpret_cast<uint4*>(p.call.out.values + activation_place(row, col, p.shape.padded)) =
        make_uint4(low.x, high.x, low.y, high.y);
  }
};

// Grid: pairs of rows.
template <typename T, Int8Input kInput, bool kOnce>
__global__ void __launch_bounds__(pair_bounds(kOnce)) int8_activation_kernel(const __grid_constant__ Activation p) {
  convert_pair<kOnce>(ActivationPair<T, kInput>(p), p.shape);
}

// =====================================================================================================================

template <typename T, Int8Input kInput>
void launch(const Activation& activation, CudaStream& stream) {
  const Grid grid = {ceil_div(activation.call.rows, 2), 1, pair_threads(activation.shape)};
  launch_on(stream, "int8_activation", grid,
            activation.call.cols <= kMaxKeptCols ? int8_activation_kernel<T, kInput, true>
                                                 : int8_activation_kernel<T, kInput, false>,
            activation);
}

}  // namespace

void int8_activation(const Int8ActivationParams& params, Stream& stream) {
  Activation activation{params, pair_shape(params.cols), chunks_aligned(params.x, params.type, params.cols)};
  if (params.norm != nullptr) {
    activation.aligned = activation.aligned && chunks_aligned(params.norm, params.type, params.cols);
  }
  with_type(params.type, [&](auto t) {
    using T = decltype(t);
    CudaStream& on = cuda_stream(stream);
    switch (params.input) {
      case Int8Input::kPlain:
        return launch<T, Int8Input::kPlain>(activation, on);
      case Int8Input::kNormed:
        return launch<T, Int8Input::kNormed>(activation, on);
      case Int8Input::kGated:
        return launch<T, Int8Input::kGated>(activation, on);
    }
  });
}

}  // namespace headrace::kernels::cuda
