#include "offload/spill/extent.h"

#include <algorithm>

namespace headrace {
namespace {

uint64_t nearest(uint64_t value, uint64_t divisor) { return std::max<uint64_t>(1, (value + divisor / 2) / divisor); }

}  // namespace

SpillCut::SpillCut(uint64_t grain_bytes) : grain_bytes_(grain_bytes) {
  CHECK(grain_bytes > 0 && grain_bytes % kPageBytes == 0, "grain_bytes=", grain_bytes);
  const uint64_t parts = nearest(grain_bytes, kRequestBytes);
  block_bytes_ = whole_pages((grain_bytes + parts - 1) / parts);
  grain_blocks_ = (grain_bytes + block_bytes_ - 1) / block_bytes_;
  request_bytes_ = parts > 1 ? block_bytes_ : grain_bytes * nearest(kRequestBytes, grain_bytes);
}

uint64_t SpillCut::request_bytes(const Extent& extent, uint64_t done) const {
  const uint64_t rest = grain_blocks_ > 1 ? grain_bytes_ - done % grain_bytes_ : extent.bytes - done;
  return std::min(request_bytes_, rest);
}

uint64_t SpillCut::requests(uint64_t extent_bytes) const {
  if (grain_blocks_ > 1) return extent_bytes / grain_bytes_ * grain_blocks_;
  return (extent_bytes + request_bytes_ - 1) / request_bytes_;
}

uint64_t SpillCut::block(uint64_t offset) const {
  return offset / grain_bytes_ * grain_blocks_ + offset % grain_bytes_ / block_bytes_;
}

uint64_t SpillCut::block_bytes(uint64_t offset) const {
  return std::min(block_bytes_, grain_bytes_ - offset % grain_bytes_);
}

}  // namespace headrace
