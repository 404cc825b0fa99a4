// The bits of a weight in a file's block, one weight at a time, for CUDA's repacking. Pure; host and device.
#pragma once

#include "kernels/weights/cuda_layout.h"

namespace headrace::kernels::cuda {

// Of the weight with the index `i` in its block.
HEADRACE_BOTH constexpr unsigned block_q(WeightType type, const uint8_t* block, int i) {
  const int run = i / 32, in = i % 32;  // of the 256-wide types
  const auto nibble = [](unsigned byte, bool high) { return high ? byte >> 4 : byte & 15; };
  const auto bit = [&](int at) { return static_cast<unsigned>(block[at + i / 8] >> i % 8 & 1) << 4; };
  switch (type) {
    case WeightType::kQ4_0:
      return nibble(block[2 + i % 16], i >= 16);
    case WeightType::kQ4_1:
      return nibble(block[4 + i % 16], i >= 16);
    case WeightType::kQ5_0:
      return nibble(block[6 + i % 16], i >= 16) | bit(2);
    case WeightType::kQ5_1:
      return nibble(block[8 + i % 16], i >= 16) | bit(4);
    case WeightType::kQ8_0:
      return block[2 + i] ^ 0x80u;
    case WeightType::kQ4K:
      return nibble(block[16 + 32 * (run / 2) + in], run % 2 == 1);
    case WeightType::kQ5K:
      return nibble(block[48 + 32 * (run / 2) + in], run % 2 == 1) | static_cast<unsigned>(block[16 + in] >> run & 1)
                                                                         << 4;
    case WeightType::kQ2K:
      return block[16 + i / 128 * 32 + in] >> run % 4 * 2 & 3u;
    case WeightType::kQ3K:
      return (block[32 + i / 128 * 32 + in] >> run % 4 * 2 & 3u) | (block[in] >> run & 1u) << 2;
    case WeightType::kIQ4NL:
      return nibble(block[2 + i % 16], i >= 16);
    case WeightType::kMXFP4:
      return nibble(block[1 + i % 16], i >= 16);
    case WeightType::kIQ4XS:
      return nibble(block[8 + 16 * run + in % 16], in >= 16);
    default:  // Q6_K
      return nibble(block[64 * (run / 4) + 32 * (run % 2) + in], run % 4 >= 2) |
             static_cast<unsigned>(block[128 + 32 * (run / 4) + in] >> 2 * (run % 4) & 3) << 4;
  }
}

// Of Q4_K and Q5_K: the group's scale, and its minimum in the next byte.
HEADRACE_BOTH constexpr unsigned block_six_bits(const uint8_t* block, int group) {
  const uint8_t* const p = block + 4;
  if (group < 4) return (p[group] & 63u) | (p[group + 4] & 63u) << 8;
  const unsigned both = p[group + 4];
  return ((both & 15u) | static_cast<unsigned>(p[group - 4] >> 6) << 4) |
         ((both >> 4) | static_cast<unsigned>(p[group] >> 6) << 4) << 8;
}

// Of Q6_K, Q3_K, IQ2_XS and IQ2_S: the scale of each 16 weights; of IQ4_XS and the other grids: of each 32. A signed
// byte.
HEADRACE_BOTH constexpr unsigned block_signed_scale(WeightType type, const uint8_t* block, int number) {
  if (type == WeightType::kQ6K) return block[192 + number];
  if (is_grid(type)) return grid_scale(type, block, has_narrow_scales(type) ? number : 2 * number);
  unsigned low, high;
  if (type == WeightType::kQ3K) {
    low = block[96 + number % 8] >> number / 8 * 4 & 15u;
    high = block[104 + number % 4] >> number / 4 * 2 & 3u;
  } else {
    low = block[4 + number / 2] >> number % 2 * 4 & 15u;
    high = block[2 + number / 4] >> number % 4 * 2 & 3u;
  }
  return ((low | high << 4) - 32) & 255;
}

// Where a block of 256 weights has d, and dmin after it.
HEADRACE_BOTH constexpr int block_d_at(WeightType type) {
  return type == WeightType::kQ6K ? 208 : type == WeightType::kQ2K ? 80 : type == WeightType::kQ3K ? 108 : 0;
}

}  // namespace headrace::kernels::cuda
