// Quantised weights for tests: blocks of random bytes, and the formulas of their types, one weight at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/weights/type.h"

namespace headrace::testing_support {

constexpr WeightType kQuantisedTypes[] = {
    WeightType::kQ4_0,   WeightType::kQ4_1,  WeightType::kQ5_0,   WeightType::kQ5_1,  WeightType::kQ8_0,
    WeightType::kQ4K,    WeightType::kQ5K,   WeightType::kQ6K,    WeightType::kQ2K,   WeightType::kQ3K,
    WeightType::kIQ4NL,  WeightType::kIQ4XS, WeightType::kIQ2XXS, WeightType::kIQ2XS, WeightType::kIQ2S,
    WeightType::kIQ3XXS, WeightType::kIQ3S,  WeightType::kMXFP4};

// Where a block has f16 numbers; MXFP4 has none.
std::vector<size_t> scale_places(WeightType type);

// A matrix as a file has it. Every byte is random but for the scales, which are of either sign, such that the weights
// are about as large as a model's. REQUIRES: cols is a multiple of the type's block_elements.
std::vector<std::byte> random_blocks(WeightType type, uint64_t seed, int64_t rows, int64_t cols);

// Its weights in f32, by the type's formula.
std::vector<float> weights_of(WeightType type, const std::vector<std::byte>& blocks);

}  // namespace headrace::testing_support
