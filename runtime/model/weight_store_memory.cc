// The memory of a weight store: parts on the device and in host memory.
#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/model/weight_store.h"

namespace headrace {

size_t WeightStore::end_part(bool movable) {
  bytes_ = whole_pages(bytes_);
  parts_.push_back({.begin = parts_.empty() ? 0 : parts_.back().end, .end = bytes_, .movable = movable});
  return parts_.size() - 1;
}

const WeightStore::Part& WeightStore::part_of(uint64_t offset) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), offset,
                                      [](uint64_t at, const Part& part) { return at < part.begin; });
  return *std::prev(after);
}

uint64_t WeightStore::bytes() const {
  uint64_t bytes = bytes_;
  for (const Part& part : parts_) bytes -= part.host.bytes();
  return bytes;
}

void WeightStore::allocate(Device& device, const char* what, const std::vector<bool>& in_host) {
  CHECK(device.backend() == backend_);
  const uint64_t ended = parts_.empty() ? 0 : parts_.back().end;
  if (ended < bytes_) parts_.push_back({.begin = ended, .end = bytes_});
  try {
    uint64_t shared = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      Part& part = parts_[i];
      if (i < in_host.size() && in_host[i]) {
        part.host = device.allocate_pinned(part.bytes(), what);
      } else if (part.movable) {
        part.device = device.allocate(part.bytes(), what);
      } else {
        shared += part.bytes();
      }
    }
    memory_ = device.allocate(shared, what);
  } catch (...) {
    release();
    throw;
  }
  std::byte* next = memory_.data();
  for (Part& part : parts_) {
    part.data = part.host ? part.host.data() : part.device ? part.device.data() : next;
    if (!part.host && !part.device) next += part.bytes();
  }
}

void WeightStore::release() {
  for (Part& part : parts_) {
    part.data = nullptr;
    part.device = {};
    part.host = {};
  }
  memory_ = {};
  loaded_ = false;
}

void WeightStore::move_to_host(size_t index, Device& device, const char* what) {
  Part& part = parts_[index];
  CHECK(part.movable && part.device);
  PinnedBuffer host = device.allocate_pinned(part.bytes(), what);
  if (loaded_) {
    const std::unique_ptr<Stream> stream = device.make_stream("weights", StreamRole::kCopy);
    stream->copy(host.data(), part.data, part.bytes(), Link::kDeviceToHost, what);
    stream->synchronize();
  }
  part.device = {};
  part.host = std::move(host);
  part.data = part.host.data();
}

}  // namespace headrace
