#include "kernels/elementwise/cpu_isa.h"

#include <cmath>

#include "kernels/cpu/simd.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

// Calls body(begin, count) for vectors of kLanes, the last possibly shorter.
#define HEADRACE_FOR_LANES(begin, count, total)                                                                \
  for (int64_t begin = 0, count = 0; count = (total)-begin < kLanes ? (total)-begin : kLanes, begin < (total); \
       begin += kLanes)

template <typename In, typename T>
void rms_norm_of(const void* x_bytes, const void* weight_bytes, void* out_bytes, int64_t cols, float eps) {
  const In* x = static_cast<const In*>(x_bytes);
  const T* weight = static_cast<const T*>(weight_bytes);
  T* out = static_cast<T*>(out_bytes);
  vf squares = zero();
  HEADRACE_FOR_LANES(i, count, cols) {
    const vf v = load_some(x + i, count);
    squares = fma(v, v, squares);
  }
  const float scale = 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(cols) + eps);
  HEADRACE_FOR_LANES(i, count, cols) {
    store_some(out + i, load_some(x + i, count) * scale * load_some(weight + i, count), count);
  }
}

template <typename In, typename Out>
void rotate_of(const void* in_bytes, const float* cos_sin, void* out_bytes, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  const In* in = static_cast<const In*>(in_bytes);
  Out* out = static_cast<Out*>(out_bytes);
  HEADRACE_FOR_LANES(i, count, half) {
    const vf a = load_some(in + i, count), b = load_some(in + half + i, count);
    const vf c = load_some(cos_sin + i, count), s = load_some(cos_sin + half + i, count);
    store_some(out + i, a * c - b * s, count);
    store_some(out + half + i, b * c + a * s, count);
  }
}

template <typename In, typename Out>
void convert_of(const void* in_bytes, void* out_bytes, int64_t total) {
  const In* in = static_cast<const In*>(in_bytes);
  Out* out = static_cast<Out*>(out_bytes);
  HEADRACE_FOR_LANES(i, count, total) store_some(out + i, load_some(in + i, count), count);
}

template <typename T>
void silu_mul_of(const void* gate_bytes, const void* up_bytes, void* out_bytes, int64_t cols) {
  const T* gate = static_cast<const T*>(gate_bytes);
  const T* up = static_cast<const T*>(up_bytes);
  T* out = static_cast<T*>(out_bytes);
  HEADRACE_FOR_LANES(i, count, cols) {
    const vf g = load_some(gate + i, count);
    store_some(out + i, g / (exp(-g) + 1.0f) * load_some(up + i, count), count);
  }
}

void rms_norm(DType x_type, DType type, const void* x, const void* weight, void* out, int64_t cols, float eps) {
  const bool wide = x_type == DType::kF32;
  switch (type) {
    case DType::kF32:
      return rms_norm_of<float, float>(x, weight, out, cols, eps);
    case DType::kF16:
      return wide ? rms_norm_of<float, f16>(x, weight, out, cols, eps)
                  : rms_norm_of<f16, f16>(x, weight, out, cols, eps);
    case DType::kBF16:
      return wide ? rms_norm_of<float, bf16>(x, weight, out, cols, eps)
                  : rms_norm_of<bf16, bf16>(x, weight, out, cols, eps);
    default:
      break;
  }
}

template <typename In>
void rotate_from(DType out_type, const void* in, const float* cos_sin, void* out, int64_t head_dim) {
  switch (out_type) {
    case DType::kF32:
      return rotate_of<In, float>(in, cos_sin, out, head_dim);
    case DType::kF16:
      return rotate_of<In, f16>(in, cos_sin, out, head_dim);
    case DType::kBF16:
      return rotate_of<In, bf16>(in, cos_sin, out, head_dim);
    default:
      break;
  }
}
void rotate(DType in_type, DType out_type, const void* in, const float* cos_sin, void* out, int64_t head_dim) {
  switch (in_type) {
    case DType::kF32:
      return rotate_from<float>(out_type, in, cos_sin, out, head_dim);
    case DType::kF16:
      return rotate_from<f16>(out_type, in, cos_sin, out, head_dim);
    case DType::kBF16:
      return rotate_from<bf16>(out_type, in, cos_sin, out, head_dim);
    default:
      break;
  }
}

template <typename In>
void convert_from(DType out_type, const void* in, void* out, int64_t count) {
  switch (out_type) {
    case DType::kF32:
      return convert_of<In, float>(in, out, count);
    case DType::kF16:
      return convert_of<In, f16>(in, out, count);
    case DType::kBF16:
      return convert_of<In, bf16>(in, out, count);
    default:
      break;
  }
}
void convert(DType in_type, DType out_type, const void* in, void* out, int64_t count) {
  switch (in_type) {
    case DType::kF32:
      return convert_from<float>(out_type, in, out, count);
    case DType::kF16:
      return convert_from<f16>(out_type, in, out, count);
    case DType::kBF16:
      return convert_from<bf16>(out_type, in, out, count);
    default:
      break;
  }
}

void silu_mul(DType type, const void* gate, const void* up, void* out, int64_t cols) {
  switch (type) {
    case DType::kF32:
      return silu_mul_of<float>(gate, up, out, cols);
    case DType::kF16:
      return silu_mul_of<f16>(gate, up, out, cols);
    case DType::kBF16:
      return silu_mul_of<bf16>(gate, up, out, cols);
    default:
      break;
  }
}

void exp_each(const float* in, float* out, int64_t total) {
  HEADRACE_FOR_LANES(i, count, total) store_some(out + i, exp(load_some(in + i, count)), count);
}

}  // namespace

const ElementwiseKernels elementwise_kernels = {rms_norm, rotate, convert, silu_mul, exp_each};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
