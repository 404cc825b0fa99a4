// MXFP4 as Hugging Face stores it, in two tensors: [.., groups, 16] with two values of a group of 32 in each byte, the
// first in the low four bits, and [.., groups] with the groups' scales. Pure.
#pragma once

#include <cstdint>

namespace headrace {

constexpr int64_t kMxfp4Group = 32, kMxfp4GroupBytes = 16, kMxfp4BlockBytes = 17;

// Writes `count` groups as blocks of WeightType::kMXFP4: the scale, then 16 bytes, of which byte i has value i in its
// low and value i + 16 in its high four bits.
inline void join_mxfp4(const uint8_t* values, const uint8_t* scales, int64_t count, uint8_t* blocks) {
  for (int64_t i = 0; i < count; ++i, values += kMxfp4GroupBytes, blocks += kMxfp4BlockBytes) {
    blocks[0] = scales[i];
    for (int64_t j = 0; j < kMxfp4GroupBytes; j += 2) {
      const uint8_t low = values[j / 2], high = values[j / 2 + kMxfp4GroupBytes / 2];
      blocks[1 + j] = static_cast<uint8_t>((low & 15) | high << 4);
      blocks[2 + j] = static_cast<uint8_t>(low >> 4 | (high & 0xf0));
    }
  }
}

}  // namespace headrace
