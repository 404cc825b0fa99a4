// The time between two places in a stream's order, on both backends.
#include "offload/device/stopwatch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "offload/device/backends.h"
#include "offload/host/clock.h"
#include "tests/offload/device/gate.h"

namespace headrace {
namespace {

class Stopwatches : public ::testing::TestWithParam<DeviceChoice> {};

// What the host does between its calls does not count, what the stream does does; asking for either waits for nothing.
TEST_P(Stopwatches, MeasureWhatTheStreamDid) {
  const std::unique_ptr<Device> device =
      open_device({.choice = GetParam(), .host_mem_bytes = 128 * kMiB, .threads = 2});
  const std::unique_ptr<Stream> stream = device->make_stream("compute", StreamRole::kCompute);
  const std::unique_ptr<Stopwatch> watch = make_stopwatch(*stream);
  for (int round = 0; round < 2; ++round) {  // it can be used again
    Gate before(*device), inside(*device);
    const std::unique_ptr<Event> begun = device->make_event();
    before.hold(*stream);
    watch->start(*stream);
    stream->record(*begun);
    inside.hold(*stream);
    watch->stop(*stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));  // the stream has not begun
    const auto opened = HostClock::now();
    before.open();
    begun->synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    inside.open();
    stream->synchronize();
    const double most = ms_since(opened);
    EXPECT_GE(watch->ms(), 19);
    EXPECT_LE(watch->ms(), most + 1) << "the wait before it has been counted";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Stopwatches,
                         ::testing::ValuesIn(cuda_usable()
                                                 ? std::vector<DeviceChoice>{DeviceChoice::kCpu, DeviceChoice::kCuda}
                                                 : std::vector<DeviceChoice>{DeviceChoice::kCpu}),
                         [](const auto& given) { return given.param == DeviceChoice::kCpu ? "cpu" : "cuda"; });

}  // namespace
}  // namespace headrace
