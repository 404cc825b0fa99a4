#include "kernels/weights/blocks.h"

#include <cmath>
#include <cstring>

#include "kernels/weights/cpu_isa.h"

namespace headrace {
namespace kernels {
static const WeightKernels& picked_kernels() { return HEADRACE_PICK_ISA(weight_kernels); }
static const QuantiseKernels& picked_quantise_kernels() { return HEADRACE_PICK_ISA(quantise_kernels); }
}  // namespace kernels

namespace {

// A block's f16 numbers, and by how much its largest weight may exceed each: |weight| <= |scale| * times + |min| *
// min_times.
struct Scales {
  int64_t scale_at, min_at;  // min_at < 0: the type has none
  float times, min_times;
};

Scales scales_of(WeightType type) {
  constexpr Scales kScales[] = {{0, -1, 8, 0},
                                {0, 2, 15, 1},
                                {0, -1, 16, 0},
                                {0, 2, 31, 1},
                                {0, -1, 128, 0},
                                {0, 2, 63 * 15, 63},
                                {0, 2, 63 * 31, 63},
                                {208, -1, 128 * 32, 0},
                                {80, 82, 15 * 3, 15},
                                {108, -1, 32 * 4, 0},
                                {0, -1, 127, 0},
                                {0, -1, 32 * 127, 0},
                                // Grids: the largest scale, level and factor
                                {0, -1, 31 * 43 / 8.0f, 0},
                                {0, -1, 31 * 43 / 8.0f, 0},
                                {0, -1, 31 * 43 / 8.0f, 0},
                                {0, -1, 31 * 62 / 4.0f, 0},
                                {0, -1, 31 * 15, 0}};
  CHECK(!is_plain(type) && type != WeightType::kMXFP4, weight_type_info(type).name);
  return kScales[quantised_index(type)];
}

float f16_at(const char* bytes) {
  f16 value;
  std::memcpy(&value.bits, bytes, sizeof value.bits);
  return std::fabs(f16_to_f32(value));
}

// NaN or infinity: all bits of the exponent are set.
bool is_special_f16(const char* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return (bits & 0x7c00) == 0x7c00;
}

// 12 times 2^(byte - 128) is the largest weight of a block of MXFP4.
int64_t first_large_exponent(const void* blocks, int64_t count, DType to) {
  const int64_t bytes = weight_type_info(WeightType::kMXFP4).block_bytes;
  const auto* block = static_cast<const uint8_t*>(blocks);
  const uint8_t most = to == DType::kF16 ? 140 : 252;
  for (int64_t i = 0; i < count; ++i, block += bytes) {
    if (*block > most) return i;
  }
  return count;
}

}  // namespace

void dequantise_blocks(WeightType type, const void* blocks, int64_t count, DType to, void* out) {
  kernels::picked_kernels().unpack(type, blocks, count, to, to, out);
}

void quantise_blocks(WeightType type, const float* values, int64_t count, void* blocks) {
  CHECK(can_quantise_to(type), weight_type_info(type).name);
  kernels::picked_quantise_kernels().quantise(type, values, count, blocks);
}

int64_t first_suspect_block(WeightType type, const void* blocks, int64_t count, DType to) {
  constexpr float kLargestF16 = 65504;
  if (type == WeightType::kMXFP4) return first_large_exponent(blocks, count, to);
  const Scales at = scales_of(type);
  const int64_t bytes = weight_type_info(type).block_bytes;
  const char* block = static_cast<const char*>(blocks);
  // Every weight of finite scales is finite: the scales' exponents suffice, and loading is faster.
  if (to != DType::kF16) {
    const int64_t other_at = at.min_at < 0 ? at.scale_at : at.min_at;
    for (int64_t i = 0; i < count; ++i, block += bytes) {
      if (is_special_f16(block + at.scale_at) || is_special_f16(block + other_at)) return i;
    }
    return count;
  }
  for (int64_t i = 0; i < count; ++i, block += bytes) {
    const float largest =
        f16_at(block + at.scale_at) * at.times + (at.min_at < 0 ? 0 : f16_at(block + at.min_at) * at.min_times);
    if (!(largest <= kLargestF16)) return i;
  }
  return count;
}

}  // namespace headrace
