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

}  // namespace headrace::kernels::cuda
