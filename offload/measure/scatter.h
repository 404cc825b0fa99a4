// Pages that do not lie together, over the link to the device, in three ways: a copy call each, one copy of equal
// strides, and a kernel that fetches them itself. What is best depends on the size of a page and on the machine, which
// is what headrace profile is for. Asynchronous; threads as stream.h.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "offload/device/stream.h"

namespace headrace {

// `rows` rows of `row_bytes`, `stride_bytes` apart in pinned memory, one after the other on the device: one call.
struct StridedCopy {
  void* to;          // [rows, row_bytes], device
  const void* from;  // [rows, stride_bytes], pinned host memory
  uint64_t rows, row_bytes, stride_bytes;
};
void copy_rows(const StridedCopy& copy, Stream& stream);

// Page i of `to` is the page `pages[i]` of `from`: one launch, no copy engine. On the CPU a memcpy each.
struct PageGather {
  void* to;                    // [count, page_bytes], device
  const void* from;            // pages of page_bytes, pinned host memory
  const int32_t* pages;        // [count], device
  uint64_t count, page_bytes;  // page_bytes: a multiple of 16
};
void gather_pages(const PageGather& gather, Stream& stream);

}  // namespace headrace
