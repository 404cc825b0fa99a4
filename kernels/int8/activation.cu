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

// The row of this block.
template <typename T, Int8Input kInput>
struct ActivationRow {
  static constexpr int kRows = 1;
  static constexpr bool kNormed = kInput == Int8Input::kNormed;
  const Activation& p;
  int64_t row;

  __device__ explicit ActivationRow(const Activation& of) : p(of), row(blockIdx.x) {}
  __device__ float eps() const { return p.call.eps; }

  __device__ void read(int col, float (&values)[kChunk]) const {
    const T* const x = static_cast<const T*>(p.call.x);
    const int count = chunk_count(p.call.cols, col);
    if constexpr (kInput == Int8Input::kGated) {
      float up[kChunk];
      load_chunk(x + 2 * row * p.call.cols + col, count, p.aligned, values);
      load_chunk(x + (2 * row + 1) * p.call.cols + col, count, p.aligned, up);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) values[i] = activated_times(p.call.activation, values[i], up[i]);  // of 0: 0
    } else {
      load_chunk(x + row * p.call.cols + col, count, p.aligned, values);
    }
  }
  __device__ void weight(int col, float (&values)[kChunk]) const {
    load_chunk(static_cast<const T*>(p.call.norm) + col, chunk_count(p.call.cols, col), p.aligned, values);
  }
  __device__ void write_scale(int, float scale) const { p.call.out.scales[row] = scale; }
  __device__ void write(int, int col, uint2 words) const {
    auto* const to = reinterpret_cast<uint32_t*>(p.call.out.values + activation_place(row, col, p.shape.padded));
    to[0] = words.x;
    to[2] = words.y;
  }
};

// Grid: rows.
template <typename T, Int8Input kInput, bool kOnce>
__global__ void __launch_bounds__(pair_bounds(kOnce)) int8_activation_kernel(const __grid_constant__ Activation p) {
  convert_rows<kOnce>(ActivationRow<T, kInput>(p), p.shape);
}

// =====================================================================================================================

template <typename T, Int8Input kInput>
void launch(const Activation& activation, CudaStream& stream) {
  const Grid grid = {activation.call.rows, 1, pair_threads(activation.shape)};
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
