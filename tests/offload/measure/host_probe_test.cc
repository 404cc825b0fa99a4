#include "offload/measure/host_probe.h"

#include <gtest/gtest.h>

#include "cache/base.h"

namespace headrace {
namespace {

TEST(HostProbe, FiguresAreThoseOfAMachine) {
  for (const int threads : {1, 2}) {
    const HostMemorySpeed speed = measure_host_memory(threads, 8 * kMiB, 2);
    for (const double gb_per_s : {speed.read, speed.write, speed.copy, speed.one_thread_copy}) {
      EXPECT_GT(gb_per_s, 0.05);
      EXPECT_LT(gb_per_s, 2000);
    }
  }
}

TEST(HostProbe, MemoryThatIsNotThereIsAnError) { EXPECT_THROW(measure_host_memory(1, uint64_t{1} << 60, 1), Error); }

}  // namespace
}  // namespace headrace
