#include "offload/measure/scatter.h"

#include <cstring>

#include "offload/device/cpu_stream.h"
#include "offload/measure/scatter_cuda.h"

namespace headrace {

void copy_rows(const StridedCopy& copy, Stream& stream) {
  CHECK(copy.row_bytes > 0 && copy.row_bytes <= copy.stride_bytes, "row_bytes=", copy.row_bytes);
  if (copy.rows == 0) return;
  if (stream.backend() == Backend::kCuda) return cuda::copy_rows(copy, stream);
  cpu_stream(stream).enqueue([copy](ThreadPool&) {
    for (uint64_t row = 0; row < copy.rows; ++row) {
      std::memcpy(static_cast<std::byte*>(copy.to) + row * copy.row_bytes,
                  static_cast<const std::byte*>(copy.from) + row * copy.stride_bytes, copy.row_bytes);
    }
  });
}

void gather_pages(const PageGather& gather, Stream& stream) {
  CHECK(gather.page_bytes > 0 && gather.page_bytes % 16 == 0, "page_bytes=", gather.page_bytes);
  if (gather.count == 0) return;
  if (stream.backend() == Backend::kCuda) return cuda::gather_pages(gather, stream);
  cpu_stream(stream).enqueue([gather](ThreadPool&) {
    for (uint64_t i = 0; i < gather.count; ++i) {
      std::memcpy(
          static_cast<std::byte*>(gather.to) + i * gather.page_bytes,
          static_cast<const std::byte*>(gather.from) + static_cast<uint64_t>(gather.pages[i]) * gather.page_bytes,
          gather.page_bytes);
    }
  });
}

}  // namespace headrace
