// How the GPU benches time a kernel: the host's clock around many enqueued calls, the median of five rounds after one
// call to warm up.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "offload/stream.h"

namespace headrace::bench {

// Microseconds a call.
inline double median_us(Stream& stream, int calls, const std::function<void()>& call) {
  call();
  stream.synchronize();
  std::vector<double> us;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    stream.synchronize();
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / calls);
  }
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

}  // namespace headrace::bench
