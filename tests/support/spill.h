// How much host memory a run is left with, so that a share of its KV cache has to live on disk. Header only.
#pragma once

#include "cache/memory_plan.h"
#include "offload/device/stream.h"

namespace headrace::testing {

// What `share` of the cache on disk leaves of what the whole would take of host memory, with a ring of `slots` segments
// between disk and link.
inline uint64_t host_bytes_for(const MemoryPlan& whole, Backend backend, double share, uint64_t ring_bytes) {
  const auto on_disk = static_cast<uint64_t>(share * static_cast<double>(whole.host_bytes));
  return whole.host_total_bytes + (backend == Backend::kCpu ? whole.vram_bytes : 0) - on_disk + whole_pages(ring_bytes);
}

}  // namespace headrace::testing
