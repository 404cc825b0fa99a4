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

template <typename In>
float norm_scale(const In* x, int64_t cols, float eps) {
  vf squares = zero();
  HEADRACE_FOR_LANES(i, count, cols) {
    const vf v = load_some(x + i, count);
    squares = fma(v, v, squares);
  }
  return 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(cols) + eps);
}

template <typename T>
HEADRACE_SIMD vf weighted(vf x, const T* weight, int64_t at, int64_t count) {
  return weight == nullptr ? x : x * load_some(weight + at, count);
}

template <typename In, typename T, typename Out>
void rms_norm_of(const void* x_bytes, const void* weight_bytes, void* out_bytes, int64_t cols, float eps) {
  const In* x = static_cast<const In*>(x_bytes);
  const T* weight = static_cast<const T*>(weight_bytes);
  Out* out = static_cast<Out*>(out_bytes);
  const float scale = norm_scale(x, cols, eps);
  HEADRACE_FOR_LANES(i, count, cols) {
    store_some(out + i, weighted(load_some(x + i, count) * scale, weight, i, count), count);
  }
}

template <typename In, typename T>
void add_norm_of(const void* x_bytes, const void* weight_bytes, const void* residual_bytes, void* out_bytes,
                 int64_t cols, float eps, float factor) {
  const In* x = static_cast<const In*>(x_bytes);
  const T* weight = static_cast<const T*>(weight_bytes);
  const In* residual = static_cast<const In*>(residual_bytes);
  In* out = static_cast<In*>(out_bytes);
  const float scale = norm_scale(x, cols, eps);
  HEADRACE_FOR_LANES(i, count, cols) {
    const vf normed = weighted(load_some(x + i, count) * scale, weight, i, count);
    store_some(out + i, (load_some(residual + i, count) + normed) * factor, count);
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

// x / (e^-t + 1) times up: of silu t is x.
template <Activation kActivation>
HEADRACE_SIMD vf activated(vf x, vf up) {
  if constexpr (kActivation == Activation::kClampedSilu) {
    const vf most = splat(kClampedMost);
    x = select(x > most, most, x);
    up = select(up > most, most, select(up < -most, -most, up)) + 1.0f;
  }
  vf t = x;
  if constexpr (kActivation == Activation::kGelu) t = x * fma(x * x, splat(kGeluCubic), splat(kGeluLinear));
  if constexpr (kActivation == Activation::kClampedSilu) t = x * kClampedSlope;
  return x / (exp(-t) + 1.0f) * up;
}

template <Activation kActivation, typename T, typename Out>
void silu_mul_of(const void* gate_bytes, const void* up_bytes, void* out_bytes, int64_t cols) {
  const T* gate = static_cast<const T*>(gate_bytes);
  const T* up = static_cast<const T*>(up_bytes);
  Out* out = static_cast<Out*>(out_bytes);
  HEADRACE_FOR_LANES(i, count, cols) {
    store_some(out + i, activated<kActivation>(load_some(gate + i, count), load_some(up + i, count)), count);
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

void add_norm(const RowTypes& types, const void* x, const void* weight, const void* residual, void* out, int64_t cols,
              float eps, float factor) {
  with_type(types.type, [&](auto t) {
    using T = decltype(t);
    (types.in == DType::kF32 ? add_norm_of<float, T> : add_norm_of<T, T>)(x, weight, residual, out, cols, eps, factor);
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

template <Activation kActivation>
void silu_mul_as(DType type, DType out_type, const void* gate, const void* up, void* out, int64_t cols) {
  with_type(type, [&](auto t) {
    using T = decltype(t);
    (out_type == DType::kF32 ? silu_mul_of<kActivation, T, float> : silu_mul_of<kActivation, T, T>)(gate, up, out,
                                                                                                    cols);
  });
}

void silu_mul(Activation activation, DType type, DType out_type, const void* gate, const void* up, void* out,
              int64_t cols) {
  const auto run = activation == Activation::kSilu   ? silu_mul_as<Activation::kSilu>
                   : activation == Activation::kGelu ? silu_mul_as<Activation::kGelu>
                                                     : silu_mul_as<Activation::kClampedSilu>;
  run(type, out_type, gate, up, out, cols);
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

template <typename In, typename T>
void scale_of(void* bytes, float factor, int64_t total) {
  In* x = static_cast<In*>(bytes);
  T rounded[kLanes];
  HEADRACE_FOR_LANES(i, count, total) {
    store_some(rounded, load_some(x + i, count) * factor, count);
    store_some(x + i, load_some(rounded, count), count);
  }
}

void scale(DType x_type, DType type, void* x, float factor, int64_t count) {
  with_type(type, [&](auto t) {
    using T = decltype(t);
    (x_type == DType::kF32 ? scale_of<float, T> : scale_of<T, T>)(x, factor, count);
  });
}

// tanh(y) = 1 - 2 / (e^2y + 1).
void softcap(float* x, float cap, int64_t total) {
  const float twice = 2.0f / cap;
  HEADRACE_FOR_LANES(i, count, total) {
    const vf tanh = splat(1.0f) - splat(2.0f) / (exp(load_some(x + i, count) * twice) + 1.0f);
    store_some(x + i, tanh * cap, count);
  }
}

void exp_each(const float* in, float* out, int64_t total) {
  HEADRACE_FOR_LANES(i, count, total) store_some(out + i, exp(load_some(in + i, count)), count);
}

}  // namespace

const ElementwiseKernels elementwise_kernels = {rms_norm, add_norm, rotate,  convert, silu_mul,
                                                gate,     scale,    softcap, exp_each};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
