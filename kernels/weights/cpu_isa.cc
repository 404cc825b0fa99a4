#include "kernels/weights/cpu_isa.h"

#include "kernels/weights/groups.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

// By the type that values are rounded to, and the one they are written as.
template <typename Round>
struct AsF32 : Round {
  using Element = float;
  HEADRACE_SIMD void put(float* p, vf v) { store(p, v); }
};
struct AsF16 : RoundF16 {
  using Element = f16;
  HEADRACE_SIMD void put(f16* p, vf v) { store_halves(p, narrow_f16(v)); }
};
struct AsBf16 : RoundBf16 {
  using Element = bf16;
  HEADRACE_SIMD void put(bf16* p, vf v) { store_halves(p, low_halves(bits_of(v) >> 16)); }
};

template <typename As, typename Type>
void unpack_blocks(const void* blocks, int64_t count, void* out) {
  const uint8_t* in = static_cast<const uint8_t*>(blocks);
  auto* to = static_cast<typename As::Element*>(out);
  for (int64_t b = 0; b < count; ++b, in += Type::kBytes) {
    typename Type::Block block;
    block.read(in);
#pragma GCC unroll kUnrolledGroups
    for (int number = 0; number < Type::kElements / kGroup; ++number, to += kGroup) {
      typename Type::template Group<As> group;
      group.read(block, number);
#pragma GCC unroll 8
      for (int i = 0; i < kGroup; i += kLanes) As::put(to + i, group.at(i));
    }
  }
}

template <typename As>
void unpack_as(WeightType type, const void* blocks, int64_t count, void* out) {
  with_blocks_of(type, [&](auto form) { unpack_blocks<As, decltype(form)>(blocks, count, out); });
}

void unpack(WeightType type, const void* blocks, int64_t count, DType rounded, DType to, void* out) {
  switch (rounded) {
    case DType::kF32:
      return unpack_as<AsF32<RoundF32>>(type, blocks, count, out);
    case DType::kF16:
      return to == rounded ? unpack_as<AsF16>(type, blocks, count, out)
                           : unpack_as<AsF32<RoundF16>>(type, blocks, count, out);
    case DType::kBF16:
      return to == rounded ? unpack_as<AsBf16>(type, blocks, count, out)
                           : unpack_as<AsF32<RoundBf16>>(type, blocks, count, out);
    default:
      break;
  }
}

}  // namespace

const WeightKernels weight_kernels = {unpack};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
