#include "kernels/weights/type.h"

#include <array>

namespace headrace {
namespace {

constexpr std::array<WeightTypeInfo, 21> kTypes = {{
    {WeightType::kF32, "F32", 1, 4},           {WeightType::kF16, "F16", 1, 2},
    {WeightType::kBF16, "BF16", 1, 2},         {WeightType::kQ4_0, "Q4_0", 32, 18},
    {WeightType::kQ4_1, "Q4_1", 32, 20},       {WeightType::kQ5_0, "Q5_0", 32, 22},
    {WeightType::kQ5_1, "Q5_1", 32, 24},       {WeightType::kQ8_0, "Q8_0", 32, 34},
    {WeightType::kQ4K, "Q4_K", 256, 144},      {WeightType::kQ5K, "Q5_K", 256, 176},
    {WeightType::kQ6K, "Q6_K", 256, 210},      {WeightType::kQ2K, "Q2_K", 256, 84},
    {WeightType::kQ3K, "Q3_K", 256, 110},      {WeightType::kIQ4NL, "IQ4_NL", 32, 18},
    {WeightType::kIQ4XS, "IQ4_XS", 256, 136},  {WeightType::kIQ2XXS, "IQ2_XXS", 256, 66},
    {WeightType::kIQ2XS, "IQ2_XS", 256, 74},   {WeightType::kIQ2S, "IQ2_S", 256, 82},
    {WeightType::kIQ3XXS, "IQ3_XXS", 256, 98}, {WeightType::kIQ3S, "IQ3_S", 256, 110},
    {WeightType::kMXFP4, "MXFP4", 32, 17},
}};

constexpr bool in_order() {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (static_cast<size_t>(kTypes[i].type) != i) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

const WeightTypeInfo& weight_type_info(WeightType type) { return kTypes[static_cast<size_t>(type)]; }

const WeightTypeInfo* find_weight_type(std::string_view name) {
  for (const WeightTypeInfo& info : kTypes) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

std::optional<WeightType> find_quantised_type(std::string_view name) {
  const WeightTypeInfo* const info = find_weight_type(name);
  return info == nullptr || is_plain(info->type) ? std::nullopt : std::optional(info->type);
}

uint64_t weight_bytes(WeightType type, int64_t rows, int64_t cols) {
  const WeightTypeInfo& info = weight_type_info(type);
  CHECK(rows >= 0 && cols >= 0 && cols % info.block_elements == 0, "rows=", rows, " cols=", cols, " type=", info.name);
  return static_cast<uint64_t>(rows * (cols / info.block_elements) * info.block_bytes);
}

}  // namespace headrace
