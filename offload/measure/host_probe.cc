#include "offload/measure/host_probe.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "cache/base.h"
#include "offload/host/clock.h"
#include "offload/host/pages.h"
#include "offload/host/thread_pool.h"

namespace headrace {
namespace {

uint64_t read_sum(const std::byte* data, uint64_t bytes) {
  const auto* const words = reinterpret_cast<const uint64_t*>(data);
  uint64_t sums[8] = {};
  for (uint64_t i = 0; i + 8 <= bytes / 8; i += 8) {
    for (uint64_t j = 0; j < 8; ++j) sums[j] ^= words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum ^= s;
  return sum;
}

// Each worker has a fixed part, so the result does not depend on scheduling. The first round does not count.
double median_gb_per_s(ThreadPool& pool, uint64_t bytes, int rounds,
                       const std::function<void(uint64_t at, uint64_t part)>& work) {
  const auto parts = static_cast<uint64_t>(pool.threads());
  const uint64_t part = bytes / parts / kPageBytes * kPageBytes;
  std::vector<double> rates;
  for (int round = 0; round <= rounds; ++round) {
    const HostClock::time_point start = HostClock::now();
    pool.parallel_for(static_cast<int64_t>(parts),
                      [&](int64_t index, int) { work(static_cast<uint64_t>(index) * part, part); });
    const double seconds = seconds_since(start);
    if (round > 0) rates.push_back(static_cast<double>(part * parts) / seconds * 1e-9);
  }
  std::nth_element(rates.begin(), rates.begin() + rounds / 2, rates.end());
  return rates[static_cast<size_t>(rounds / 2)];
}

}  // namespace

HostMemorySpeed measure_host_memory(int threads, uint64_t bytes, int rounds) {
  CHECK(threads > 0 && rounds > 0 && bytes / static_cast<uint64_t>(threads) >= kPageBytes, "bytes=", bytes);
  const uint64_t whole = whole_pages(bytes);
  const MappedPages from(whole, "to measure memory with"), to(whole, "to measure memory with");
  for (const MappedPages* pages : {&from, &to}) touch_pages(pages->data(), whole, threads);
  ThreadPool pool(threads), alone(1);
  HostMemorySpeed speed;
  const auto copy = [&](uint64_t at, uint64_t part) { std::memcpy(to.data() + at, from.data() + at, part); };
  speed.copy = median_gb_per_s(pool, whole, rounds, copy);
  speed.read = median_gb_per_s(pool, whole, rounds, [&](uint64_t at, uint64_t part) {
    volatile uint64_t kept = read_sum(from.data() + at, part);  // forces the computation
    (void)kept;
  });
  speed.write =
      median_gb_per_s(pool, whole, rounds, [&](uint64_t at, uint64_t part) { std::memset(to.data() + at, 1, part); });
  speed.one_thread_copy = threads == 1 ? speed.copy : median_gb_per_s(alone, whole / 4, rounds, copy);
  return speed;
}

}  // namespace headrace
