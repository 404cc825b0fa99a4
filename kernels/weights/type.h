// The element types of weight matrices: plain ones, and the quantised ones of ggml files. The formula of its type gives
// a quantised weight's value in f32; the value is rounded once to the type of the computation (docs/design.md,
// section 5). Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "cache/base.h"

namespace headrace {

enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4K,
  kQ5K,
  kQ6K,
  kQ2K,
  kQ3K,
  kIQ4NL,
  kIQ4XS,
  kIQ2XXS,
  kIQ2XS,
  kIQ2S,
  kIQ3XXS,
  kIQ3S,
  kMXFP4,
};

// The levels that the four bits of IQ4_NL and IQ4_XS stand for.
constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Twice the numbers that the four bits of MXFP4 stand for: a sign, two bits of an exponent, one of a mantissa. A
// block's first byte is the exponent of its scale: such a level is multiplied by 2^(byte - 128).
constexpr int8_t kFloatLevels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct WeightTypeInfo {
  WeightType type;
  const char* name;        // ggml's: "Q4_K"
  int64_t block_elements;  // weights of one row that share a block; 1: a plain type
  int64_t block_bytes;     // in a file
};

const WeightTypeInfo& weight_type_info(WeightType type);
const WeightTypeInfo* find_weight_type(std::string_view name);  // "Q4_K"; null if there is none
constexpr bool is_plain(WeightType type) { return type <= WeightType::kBF16; }
std::optional<WeightType> find_quantised_type(std::string_view name);  // none: there is none, or it is plain
constexpr WeightType plain_weight_type(DType type) {
  return type == DType::kF32 ? WeightType::kF32 : type == DType::kF16 ? WeightType::kF16 : WeightType::kBF16;
}
// Of a matrix in a file. REQUIRES: cols is a multiple of the type's block_elements.
uint64_t weight_bytes(WeightType type, int64_t rows, int64_t cols);

}  // namespace headrace
