#include "cli/devices.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Devices, ALineEach) {
  EXPECT_EQ(format_devices({{"cuda:0", "Tesla T4, 15.00 GiB", "it is too old"}, {"cpu", "2 cores", ""}}),
            "cuda:0  Tesla T4, 15.00 GiB (cannot be used: it is too old)\n"
            "cpu     2 cores\n");
}

TEST(Devices, ABatchSaysWhatEachDid) {
  const std::vector<DeviceOptions> gpus = {{.choice = DeviceChoice::kCuda, .cuda_index = 0},
                                           {.choice = DeviceChoice::kCuda, .cuda_index = 3}};
  BatchOutcome outcome;
  outcome.answered = 12;
  outcome.skipped = 3;
  outcome.engines = {{.answered = 12}};
  EXPECT_EQ(format_batch(outcome, "summarized", {}), "12 summarized, 3 done before, 0 failed");
  outcome.engines = {{.answered = 10}, {.answered = 2, .lost = true}};
  EXPECT_EQ(format_batch(outcome, "answered", gpus),
            "12 answered, 3 done before, 0 failed; cuda:0 10, cuda:3 2 (lost)");
  outcome.interrupted = true;
  EXPECT_EQ(
      format_batch(outcome, "answered", gpus),
      "12 answered, 3 done before, 0 failed; interrupted, the same command continues; cuda:0 10, cuda:3 2 (lost)");
  EXPECT_EQ(format_lost(gpus[1], "cudaMemcpyAsync: error", "report.txt"),
            "cuda:3 failed on report.txt: cudaMemcpyAsync: error; the other devices continue");
}

}  // namespace
}  // namespace headrace
