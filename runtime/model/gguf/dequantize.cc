#include "runtime/model/gguf/dequantize.h"

#include <array>

#include "kernels/weights/blocks.h"
#include "runtime/model/convert.h"

namespace headrace {
namespace {

constexpr uint32_t kF32 = 0, kF16 = 1, kBF16 = 30;

constexpr std::array<GgmlType, 34> kGgmlTypes = {{
    {kF32, "F32", 1, 4},      {kF16, "F16", 1, 2},      {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {kBF16, "BF16", 1, 2},    {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {kGgmlMxfp4, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
}};

}  // namespace

const GgmlType* find_ggml_type(uint32_t id) {
  for (const GgmlType& type : kGgmlTypes)
    if (type.id == id) return &type;
  return nullptr;
}

bool can_read(const GgmlType& type) { return find_weight_type(type.name) != nullptr; }

std::optional<DType> plain_type(const GgmlType& type) {
  if (type.id == kF32) return DType::kF32;
  if (type.id == kF16) return DType::kF16;
  if (type.id == kBF16) return DType::kBF16;
  return std::nullopt;
}

void dequantize(const GgmlType& type, const char* source, DType to, void* out, int64_t count) {
  CHECK(count % type.block_elements == 0, "count=", count, " type=", type.name);
  if (const std::optional<DType> plain = plain_type(type)) return convert_elements(*plain, source, to, out, count);
  const WeightTypeInfo* const info = find_weight_type(type.name);
  CHECK(info != nullptr, "type ", type.name, " cannot be read");
  dequantise_blocks(info->type, source, count / type.block_elements, to, out);
}

}  // namespace headrace
