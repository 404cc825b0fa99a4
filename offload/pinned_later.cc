#include "offload/pinned_later.h"

#include <chrono>
#include <utility>

namespace headrace {

PinnedLater::PinnedLater(Device& device, uint64_t bytes, std::string what) : begun_(true) {
  if (bytes == 0) return;
  // Where the system has no thread for it, get() takes the memory itself.
  coming_ = std::async(std::launch::async | std::launch::deferred,
                       [&device, bytes, what = std::move(what)] { return take(device, bytes, what); });
}

PinnedLater::Taken PinnedLater::take(Device& device, uint64_t bytes, const std::string& what) {
  const auto start = std::chrono::steady_clock::now();
  Taken taken;
  taken.buffer = device.allocate_pinned(bytes, what);
  taken.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return taken;
}

const PinnedBuffer& PinnedLater::get() {
  if (coming_.valid()) taken_ = coming_.get();
  return taken_.buffer;
}

}  // namespace headrace
