// Weight matrices in the device's memory. A matrix may be made of parts, each in its own type: a file may hold q and k
// in Q4_K and v in Q6_K, which are one matrix to the product. The CPU keeps the blocks of the file. CUDA repacks them
// once, at load, into the order in which the product's threads read them; a repacked part takes at most 1.03 times its
// bytes in the file (Q3_K 1.04, IQ2 and IQ3 1.13) and holds the same values.
//
// Each op takes one params struct of views and a stream, owns nothing and returns at once. The CPU body is the truth.
#pragma once

#include <cstdint>

#include "kernels/weights/type.h"
#include "offload/device/stream.h"

namespace headrace {

struct WeightPart {
  const void* data = nullptr;  // device memory, 256-byte aligned, in the backend's layout
  WeightType type = WeightType::kF32;
  int64_t rows = 0;
};

// [rows, cols]: the parts' rows, one part after another. Null where the model has no such matrix: count = 0.
struct Weight {
  WeightPart parts[3];  // an array that kernels can index
  int count = 0;
  int64_t cols = 0;

  bool operator==(std::nullptr_t) const { return count == 0; }
  int64_t rows() const { return parts[0].rows + parts[1].rows + parts[2].rows; }
  bool plain() const { return count == 1 && is_plain(parts[0].type); }  // row-major, contiguous
};

// A matrix of a plain type that is one contiguous array, [rows, cols].
constexpr Weight plain_weight(const void* data, DType type, int64_t rows, int64_t cols) {
  return {.parts = {{data, plain_weight_type(type), rows}, {}, {}}, .count = 1, .cols = cols};
}

// Bytes of a part on the device. A plain part takes what it takes in the file.
uint64_t stored_weight_bytes(Backend backend, WeightType type, int64_t rows, int64_t cols);

// Converts rows of a quantised part from the file's blocks to the backend's layout. The caller passes one run of rows
// after another, so that a part is repacked while the rest of it is read.
constexpr int64_t kStoreRows = 16;  // runs begin at multiples of this; the last may end anywhere
struct StoreWeightParams {
  const void* blocks;  // [row_end - row_begin, cols] as in the file; the device's memory
  WeightType type;
  void* out;           // the part's first byte
  int64_t rows, cols;  // of the part
  int64_t row_begin, row_end;
};
void store_weight(const StoreWeightParams& params, Stream& stream);

// out[i] = row ids[i] of the weight, or row first_row + i where ids is null; rounded once, to `type`.
struct DequantiseParams {
  Weight weight;       // its plain parts are of `type`
  const int32_t* ids;  // [rows], device, each in [0, weight.rows()); or null
  int64_t first_row, rows;
  DType type;
  DType out_type;  // type, or kF32 with the same values
  void* out;       // [rows, cols]
};
void dequantise(const DequantiseParams& params, Stream& stream);

}  // namespace headrace
