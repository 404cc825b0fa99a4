#include "kernels/elementwise/cpu_isa.h"

#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/with_type.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

// Calls body(begin, count) for vectors of kLanes, the last possibly shorter.
#define HEADRACE_FOR_LANES(begin, count, total)                                                                \
  for (int64_t begin = 0, count = 0; count = (total)-begin < kLanes ? (total)-begin : kLanes, begin < (total); \
       begin += kLanes)

template <typename In, typename T, typename Out>
void rms_norm_of(const void* x_bytes, const void* weight_bytes, void* out_bytes, int64_t cols, float eps) {
  const In* x = static_cast<const In*>(x_bytes);
  const T* weight = static_cast<const T*>(weight_bytes);
  Out* out = static_cast<Out*>(out_bytes);
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

template <typename T, typename Out>
void silu_mul_of(const void* gate_bytes, const void* up_bytes, void* out_bytes, int64_t cols) {
  const T* gate = static_cast<const T*>(gate_bytes);
  const T* up = static_cast<const T*>(up_bytes);
  Out* out = static_cast<Out*>(out_bytes);
  HEADRACE_FOR_LANES(i, count, cols) {
    const vf g = load_some(gate + i, count);
    store_some(out + i, g / (exp(-g) + 1.0f) * load_some(up + i, count), count);
  }
}

void rms_norm(const RowTypes& types, const void* x, const void* weight, void* out, int64_t cols, float eps) {
  with_type(types.type, [&](auto t) {
    using T = decltype(t);
    const bool wide = types.out == DType::kF32;
    const auto run = types.in == DType::kF32 ? (wide ? rms_norm_of<float, T, float> : rms_norm_of<float, T, T>)
                                             : (wide ? rms_norm_of<T, T, float> : rms_norm_of<T, T, T>);
    run(x, weight, out, cols, eps);
  });
}

void rotate(DType in_type, DType out_type, const void* in, const float* cos_sin, void* out, int64_t head_dim) {
  with_type(in_type, [&](auto from) {
    with_type(out_type, [&](auto to) { rotate_of<decltype(from), decltype(to)>(in, cos_sin, out, head_dim); });
  });
}

void convert(DType in_type, DType out_type, const void* in, void* out, int64_t count) {
  with_type(in_type, [&](auto from) {
    with_type(out_type, [&](auto to) { convert_of<decltype(from), decltype(to)>(in, out, count); });
  });
}

void silu_mul(DType type, DType out_type, const void* gate, const void* up, void* out, int64_t cols) {
  with_type(type, [&](auto t) {
    using T = decltype(t);
    (out_type == DType::kF32 ? silu_mul_of<T, float> : silu_mul_of<T, T>)(gate, up, out, cols);
  });
}

template <typename T>
void gate_of(const void* gate_bytes, void* y_bytes, int64_t cols) {
  const T* gate = static_cast<const T*>(gate_bytes);
  T* y = static_cast<T*>(y_bytes);
  HEADRACE_FOR_LANES(i, count, cols) {
    store_some(y + i, load_some(y + i, count) / (exp(-load_some(gate + i, count)) + 1.0f), count);
  }
}

void gate(DType type, const void* gate, void* y, int64_t cols) {
  with_type(type, [&](auto t) { gate_of<decltype(t)>(gate, y, cols); });
}

void exp_each(const float* in, float* out, int64_t total) {
  HEADRACE_FOR_LANES(i, count, total) store_some(out + i, exp(load_some(in + i, count)), count);
}

}  // namespace

const ElementwiseKernels elementwise_kernels = {rms_norm, rotate, convert, silu_mul, gate, exp_each};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
