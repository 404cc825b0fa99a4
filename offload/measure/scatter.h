// Transfers scattered pages over the link to the device in three ways: one copy call each, one strided copy, and a
// kernel that reads them itself. Which is fastest depends on the page size and the machine; headrace profile measures
// it. Asynchronous; threads as in stream.h.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "offload/device/stream.h"

namespace headrace {

// One call: `rows` rows of `row_bytes`, `stride_bytes` apart in pinned memory, contiguous on the device.
struct StridedCopy {
  void* to;          // [rows, row_bytes], device
  const void* from;  // [rows, stride_bytes], pinned host memory
  uint64_t rows, row_bytes, stride_bytes;
};
void copy_rows(const StridedCopy& copy, Stream& stream);

// Page i of `to` is page `pages[i]` of `from`: one launch, no copy engine. On the CPU one memcpy per page.
struct PageGather {
  void* to;                    // [count, page_bytes], device
  const void* from;            // pages of page_bytes, pinned host memory
  const int32_t* pages;        // [count], device
  uint64_t count, page_bytes;  // page_bytes: a multiple of 16
};
void gather_pages(const PageGather& gather, Stream& stream);

}  // namespace headrace
