// The quantised types of ggml files that products do not read: IQ4_NL, IQ4_XS, Q3_K and Q2_K. Any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/weights/type.h"

namespace headrace {

struct OtherBlocks {
  const char* stored;                                  // "Q3_K"
  void (*read)(const uint8_t* block, float* weights);  // by the type's formula, each step rounded to f32
  // The block as blocks of kept_type(stored), which have the same values. Null: there is no such type.
  void (*convert)(const uint8_t* block, uint8_t* out);
};

const OtherBlocks* find_other_blocks(std::string_view stored);  // null if it is not one of these

}  // namespace headrace
