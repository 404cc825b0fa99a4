// The host memory of a run with a share of its KV cache on disk. Header only.
#pragma once

#include "cache/memory_plan.h"
#include "offload/device/stream.h"

namespace headrace::testing {

// The host memory that remains with `share` of the cache on disk and a ring of `slots` segments between disk and link.
inline uint64_t host_bytes_for(const MemoryPlan& whole, Backend backend, double share, uint64_t ring_bytes) {
  const auto on_disk = static_cast<uint64_t>(share * static_cast<double>(whole.host_bytes));
  return whole.host_total_bytes + (backend == Backend::kCpu ? whole.vram_bytes : 0) - on_disk + whole_pages(ring_bytes);
}

}  // namespace headrace::testing
