#include "tests/offload/device/gate.h"

#include <thread>

#include "offload/device/cpu_stream.h"

namespace headrace {

Gate::Gate(Device& device, std::chrono::nanoseconds limit)
    : limit_(limit), memory_(device.allocate_pinned(sizeof(uint32_t), "a gate")), word_(memory_.as<uint32_t>()) {
  if (device.backend() != Backend::kCuda) return;
  // The kernel is loaded when it is first launched, which must not have to wait for a stream that a gate holds.
  const auto stream = device.make_stream("warm-up", StreamRole::kCopy);
  hold_cuda(*stream, word_, std::chrono::nanoseconds(0));
  stream->synchronize();
}

void Gate::hold(Stream& stream) {
  if (stream.backend() == Backend::kCuda) return hold_cuda(stream, word_, limit_);
  cpu_stream(stream).enqueue([word = word_, limit = limit_](ThreadPool&) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::atomic_ref(*word).load() == 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
}

}  // namespace headrace
