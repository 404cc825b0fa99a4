// Eight elements of any type as floats: loads widen, stores round once, to nearest even. Whole chunks use 16-byte
// accesses if the caller knows that they are aligned; the access width changes no bit. Device code.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cache/base.h"

namespace headrace::kernels::cuda {

constexpr int kChunk = 8;

// For the host: whether every chunk from `pointer` on, `stride` elements apart, can be accessed whole.
inline bool chunks_aligned(const void* pointer, DType type, int64_t stride) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride * static_cast<int64_t>(dtype_bytes(type)) % 16 == 0;
}

// For bugs of the caller: the kernel stops, and the stream's next call throws.
__device__ inline void device_check(bool condition) {
  if (!condition) __trap();
}

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
template <typename T>
__device__ T narrow(float value);
template <>
__device__ inline float narrow<float>(float value) {
  return value;
}
template <>
__device__ inline __half narrow<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

template <typename T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T of[kCount];
};

// Loads the first `count` elements; the rest is zero.
template <typename T>
__device__ inline void load_chunk(const T* from, int count, bool aligned, float (&values)[kChunk]) {
  constexpr int kCount = Pack<T>::kCount;
  if (aligned && count >= kChunk) {
#pragma unroll
    for (int i = 0; i < kChunk; i += kCount) {
      const uint4 raw = *reinterpret_cast<const uint4*>(from + i);
      const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(&raw);
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[i + j] = widen(pack.of[j]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) values[i] = i < count ? widen(from[i]) : 0.0f;
  }
}
template <typename T>
__device__ inline void store_chunk(T* to, int count, bool aligned, const float (&values)[kChunk]) {
  constexpr int kCount = Pack<T>::kCount;
  if (aligned && count >= kChunk) {
#pragma unroll
    for (int i = 0; i < kChunk; i += kCount) {
      Pack<T> pack;
#pragma unroll
      for (int j = 0; j < kCount; ++j) pack.of[j] = narrow<T>(values[i + j]);
      *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(&pack);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < count) to[i] = narrow<T>(values[i]);
    }
  }
}

// A whole, aligned chunk with its memory layout, so that many can be in flight in few registers.
template <typename T>
struct RawChunk {
  uint4 of[kChunk * sizeof(T) / 16];

  __device__ void load(const T* aligned) {
#pragma unroll
    for (int i = 0; i < kChunk / Pack<T>::kCount; ++i) of[i] = reinterpret_cast<const uint4*>(aligned)[i];
  }
  __device__ void widen_to(float (&values)[kChunk]) const {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      values[i] = widen(reinterpret_cast<const Pack<T>&>(of[i / Pack<T>::kCount]).of[i % Pack<T>::kCount]);
    }
  }
};

// The type is a runtime value, the same for a whole launch, so the branch costs little beside the memory access.
__device__ inline void load_chunk(DType type, const void* base, int64_t element, int count, bool aligned,
                                  float (&values)[kChunk]) {
  switch (type) {
    case DType::kF32:
      return load_chunk(static_cast<const float*>(base) + element, count, aligned, values);
    case DType::kF16:
      return load_chunk(static_cast<const __half*>(base) + element, count, aligned, values);
    case DType::kBF16:
      return load_chunk(static_cast<const __nv_bfloat16*>(base) + element, count, aligned, values);
    default:
      break;
  }
}
__device__ inline void store_chunk(DType type, void* base, int64_t element, int count, bool aligned,
                                   const float (&values)[kChunk]) {
  switch (type) {
    case DType::kF32:
      return store_chunk(static_cast<float*>(base) + element, count, aligned, values);
    case DType::kF16:
      return store_chunk(static_cast<__half*>(base) + element, count, aligned, values);
    case DType::kBF16:
      return store_chunk(static_cast<__nv_bfloat16*>(base) + element, count, aligned, values);
    default:
      break;
  }
}
// What a store would keep.
__device__ inline float rounded_to(DType type, float value) {
  return type == DType::kF32   ? value
         : type == DType::kF16 ? widen(narrow<__half>(value))
                               : widen(narrow<__nv_bfloat16>(value));
}
__device__ inline float load_one(DType type, const void* base, int64_t element) {
  switch (type) {
    case DType::kF32:
      return static_cast<const float*>(base)[element];
    case DType::kF16:
      return widen(static_cast<const __half*>(base)[element]);
    case DType::kBF16:
      return widen(static_cast<const __nv_bfloat16*>(base)[element]);
    default:
      break;
  }
  return 0.0f;
}
__device__ inline void store_one(DType type, void* base, int64_t element, float value) {
  switch (type) {
    case DType::kF32:
      static_cast<float*>(base)[element] = value;
      return;
    case DType::kF16:
      static_cast<__half*>(base)[element] = narrow<__half>(value);
      return;
    case DType::kBF16:
      static_cast<__nv_bfloat16*>(base)[element] = narrow<__nv_bfloat16>(value);
      return;
    default:
      break;
  }
}

}  // namespace headrace::kernels::cuda
