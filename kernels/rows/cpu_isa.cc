#include "kernels/rows/cpu_isa.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/with_type.h"
#include "kernels/rows/low_bit.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

constexpr uint16_t kNotFinite = 0x7c00, kNan = 0x7e00;  // f16; the least magnitude that is not finite
constexpr float kRoundMagic = 0x1.8p23f;                // adding it rounds to an integer in the low bits

HEADRACE_SIMD int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The largest magnitude as bits: a NaN is larger than infinity, and infinity larger than the rest.
HEADRACE_SIMD vu larger_magnitude(vu most, vf value) {
  const vu magnitude = bits_of(value) & 0x7fffffff;
  return select(vi(most < magnitude), magnitude, most);
}
HEADRACE_SIMD uint32_t largest_of(vu v) {
  uint32_t most = 0;
  for (int i = 0; i < kLanes; ++i) most = most < v[i] ? v[i] : most;
  return most;
}

// value, rounded to f16; NaN if that is not finite.
HEADRACE_SIMD uint16_t parameter_of(float value) {
  const uint16_t bits = narrow_f16(splat(value))[0];
  return (bits & 0x7fff) >= kNotFinite ? kNan : bits;
}
HEADRACE_SIMD float widen_parameter(uint16_t bits) { return widen_one(reinterpret_cast<const f16*>(&bits)); }

// Rounded to nearest even, within [low, high]; the integers are in the low bits.
HEADRACE_SIMD vu round_within(vf value, float low, float high) {
  value = select(value < low, splat(low), value);
  value = select(value > high, splat(high), value);
  return bits_of(value + kRoundMagic);
}
HEADRACE_SIMD void store_low_bytes(void* p, vu v, int64_t count) {
  const vbyte bytes = __builtin_convertvector(v & 0xff, vbyte);
  memcpy(p, &bytes, size_t(count));
}

// ---- int8 -----------------------------------------------------------------------------------------------------------

template <typename T>
void quantise_int8(const RowRun& run) {
  const int64_t dim = run.head_dim;
  for (int64_t row = 0; row < run.count; ++row) {
    const T* from = static_cast<const T*>(run.exact) + row * dim;
    uint8_t* to = static_cast<uint8_t*>(run.values) + row * dim;
    vu most = {};
    for (int64_t i = 0; i < dim; i += kLanes)
      most = larger_magnitude(most, load_some(from + i, smaller(kLanes, dim - i)));
    const uint32_t top_bits = largest_of(most);
    float top;
    memcpy(&top, &top_bits, sizeof top);
    const uint16_t scale = parameter_of(top / 127.0f);
    memcpy(static_cast<char*>(run.parameters) + row * 2, &scale, sizeof scale);
    if (scale == 0 || scale == kNan) {
      memset(to, 0, size_t(dim));
      continue;
    }
    const vf divisor = splat(widen_parameter(scale));
    for (int64_t i = 0; i < dim; i += kLanes) {
      const int64_t some = smaller(kLanes, dim - i);
      store_low_bytes(to + i, round_within(load_some(from + i, some) / divisor, -127.0f, 127.0f), some);
    }
  }
}

template <typename T>
void dequantise_int8(const RowRun& run) {
  const int64_t dim = run.head_dim;
  for (int64_t row = 0; row < run.count; ++row) {
    const int8_value* from = static_cast<const int8_value*>(run.values) + row * dim;
    T* to = static_cast<T*>(run.exact) + row * dim;
    const vf scale = splat(widen_one(static_cast<const f16*>(run.parameters) + row));
    for (int64_t i = 0; i < dim; i += kLanes) {
      const int64_t some = smaller(kLanes, dim - i);
      store_some(to + i, load_some(from + i, some) * scale, some);
    }
  }
}

// ---- int4 -----------------------------------------------------------------------------------------------------------

void quantise_group(const float* values, uint8_t* to, uint16_t* parameters) {
  vu most = {};
  vf largest_values = splat(values[0]), least_values = largest_values;
  for (int64_t i = 0; i < kInt4Group; i += kLanes) {
    const vf value = load(values + i);
    most = larger_magnitude(most, value);
    largest_values = max(largest_values, value);
    least_values = min(least_values, value);
  }
  const float least = -largest(-least_values);
  parameters[0] = parameter_of((largest(largest_values) - least) / 15.0f);
  parameters[1] = parameter_of(least);
  if (largest_of(most) >= 0x7f800000 || parameters[0] == kNan || parameters[1] == kNan) {
    parameters[0] = parameters[1] = kNan;
    memset(to, 0, size_t(kHalfGroup));
  } else if (parameters[0] == 0) {
    memset(to, 0, size_t(kHalfGroup));
  } else {
    const vf scale = splat(widen_parameter(parameters[0])), minimum = splat(widen_parameter(parameters[1]));
    for (int64_t i = 0; i < kHalfGroup; i += kLanes) {
      const vu low = round_within((load(values + i) - minimum) / scale, 0.0f, 15.0f);
      const vu high = round_within((load(values + kHalfGroup + i) - minimum) / scale, 0.0f, 15.0f);
      store_low_bytes(to + i, (low & 15) | (high & 15) << 4, kLanes);
    }
  }
}

template <typename T>
void quantise_int4(const RowRun& run) {
  const int64_t dim = run.head_dim, groups = dim / kInt4Group;
  for (int64_t row = 0; row < run.count; ++row) {
    const T* from = static_cast<const T*>(run.exact) + row * dim;
    alignas(64) float rotated[kMaxRowHeadDim];
    for (int64_t i = 0; i < dim; i += kLanes) store(rotated + i, load(from + i));
    hadamard(rotated, dim);
    uint16_t parameters[2 * kMaxRowHeadDim / kInt4Group];
    for (int64_t group = 0; group < groups; ++group) {
      quantise_group(rotated + group * kInt4Group,
                     static_cast<uint8_t*>(run.values) + row * dim / 2 + group * kHalfGroup, parameters + 2 * group);
    }
    memcpy(static_cast<char*>(run.parameters) + row * groups * 4, parameters, size_t(groups * 4));
  }
}

// ---- The table ------------------------------------------------------------------------------------------------------

void quantise(const RowRun& run) {
  with_type(run.type, [&](auto t) {
    using T = decltype(t);
    (run.stored == DType::kInt8 ? quantise_int8<T> : quantise_int4<T>)(run);
  });
}

void dequantise(const RowRun& run) {
  with_type(run.type, [&](auto t) { dequantise_int8<decltype(t)>(run); });
}

}  // namespace

const RowKernels row_kernels = {quantise, dequantise};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
