// What the kernels for groups of rows share (grouped_product()): the kernel of few rows, whose blocks hold all of x,
// and the one of many. Both ask the device which group a block has, and which rows. Internal to kernels/product.
#pragma once

#include "kernels/product/packed.h"
#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {

struct PackedGroups {
  const int32_t *begin, *present;  // as in GroupedProductParams
  uint64_t stride;
  int most_rows;
  uint64_t bias_stride;     // of PackedProduct::bias, which is that of matrix 0, or null
  const int32_t* matrices;  // as in GroupedProductParams
};

__device__ inline int matrix_of_group(const PackedGroups& groups, int group) {
  return groups.matrices != nullptr ? groups.matrices[group] : group;
}

__device__ inline const void* bias_of_group(const PackedProduct& p, const PackedGroups& groups, int group) {
  return p.bias == nullptr ? nullptr
                           : static_cast<const char*>(p.bias) + matrix_of_group(groups, group) * groups.bias_stride;
}

struct GroupRows {
  int group, begin, end;
};
// Of the block. Read again after the sums, which need the registers: hence the volatile reads.
__device__ inline GroupRows rows_of_block(const PackedGroups& groups) {
  const auto read = [](const int32_t* from) {
    int32_t value;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(from));
    return value;
  };
  const int group = groups.present != nullptr ? read(groups.present + blockIdx.z) : static_cast<int>(blockIdx.z);
  if (group < 0) return {group, 0, 0};
  return {group, read(groups.begin + group), read(groups.begin + group + 1)};
}

// Up to here a block multiplies its group's rows eight at a time and reads its weights again for more than eight. With
// more rows that costs more than copying steps of x for sixteen.
constexpr int kMostFewGroupRows = 64;

// A product whose groups have few rows. False: it has rows that do not fit, and nothing was enqueued. blocks: of
// groups.
bool packed_few_groups(const PackedProduct& p, const PackedGroups& groups, int64_t blocks, CudaStream& stream);

}  // namespace headrace::kernels::cuda
