// The element types of ggml files: their block sizes, and for those we read, from blocks to weights. The values equal,
// to the bit in f32, those of the reference (the gguf package's quants.dequantize); other types are rounded from them.
// Pure; from any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "cache/base.h"
#include "kernels/weights/type.h"

namespace headrace {

struct GgmlType {
  uint32_t id;
  const char* name;        // "Q4_1"
  int64_t block_elements;  // weights a block
  int64_t block_bytes;
};

constexpr uint32_t kGgmlMxfp4 = 39;
const GgmlType* find_ggml_type(uint32_t id);  // null if there is none
bool can_read(const GgmlType& type);
std::optional<DType> plain_type(const GgmlType& type);  // F32, F16, BF16; none: it is quantised

// `count` weights (whole blocks) at `source`, which need not be aligned, written as type `to` at `out`.
void dequantize(const GgmlType& type, const char* source, DType to, void* out, int64_t count);

}  // namespace headrace
