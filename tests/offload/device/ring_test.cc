#include "offload/device/ring.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "cache/base.h"
#include "tests/offload/device/backend_test.h"
#include "tests/offload/device/gate.h"

namespace headrace {
namespace {

enum class Slower { kNeither, kCopy, kCompute };

struct RingCase {
  DeviceChoice device;
  int slots;
  uint64_t slot_bytes;
  Slower slower;
};

std::unique_ptr<Device> open_cpu() { return open_device(small_device(DeviceChoice::kCpu)); }

class RingData : public ::testing::TestWithParam<RingCase> {};

// 64-bit words, each different, go through the ring; compute copies every fill to where it belongs. A slot that is
// overwritten too early or read too early leaves wrong words.
TEST_P(RingData, ArrivesWhole) {
  const RingCase given = GetParam();
  constexpr uint64_t kFills = 60;
  const uint64_t words = given.slot_bytes / 8;
  DeviceOptions options = small_device(given.device);
  if (given.slower == Slower::kCopy) options.copy_gb_per_s = static_cast<double>(given.slot_bytes) / 200e3;
  const auto device = open_device(options);
  Gate work(*device, std::chrono::microseconds(200));  // never opened: it takes that long
  PinnedBuffer source = device->allocate_pinned(kFills * words * 8, "source");
  PinnedBuffer result = device->allocate_pinned(kFills * words * 8, "result");
  uint64_t* const from = source.as<uint64_t>();
  std::iota(from, from + kFills * words, uint64_t{1} << 40);
  StagingRing ring(*device, given.slots, given.slot_bytes);
  const auto copy = device->make_stream("copy", StreamRole::kCopy);
  const auto compute = device->make_stream("compute", StreamRole::kCompute);

  const auto fill = [&](uint64_t n) {
    const uint64_t taken = n % 7 == 3 ? words / 2 : words;  // a fill may be shorter than its slot
    ring.fill(n, from + n * words, taken * 8, *copy);
  };
  for (uint64_t n = 0; n < std::min<uint64_t>(kFills, static_cast<uint64_t>(given.slots)); ++n) fill(n);
  for (uint64_t n = 0; n < kFills; ++n) {
    const std::byte* staged = ring.acquire(n, *compute);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(staged) % 256, 0u);
    uint64_t* const to = result.as<uint64_t>() + n * words;
    const uint64_t taken = n % 7 == 3 ? words / 2 : words;
    if (given.slower == Slower::kCompute) work.hold(*compute);
    compute->copy(to, staged, taken * 8, Link::kDeviceToHost);
    ring.release(n, *compute);
    if (n + static_cast<uint64_t>(given.slots) < kFills) fill(n + static_cast<uint64_t>(given.slots));
  }
  compute->synchronize();
  for (uint64_t n = 0; n < kFills; ++n) {
    const uint64_t taken = n % 7 == 3 ? words / 2 : words;
    ASSERT_EQ(std::memcmp(from + n * words, result.as<uint64_t>() + n * words, taken * 8), 0) << "fill " << n;
  }
}

std::string case_name(const ::testing::TestParamInfo<RingCase>& info) {
  const char* const names[] = {"even", "slowcopy", "slowcompute"};
  return str(backend_name(info.param.device), "_slots", info.param.slots, "_bytes", info.param.slot_bytes, "_",
             names[static_cast<int>(info.param.slower)]);
}

std::vector<RingCase> all_cases() {
  std::vector<RingCase> cases;
  for (DeviceChoice device : backends()) {
    for (int slots : {1, 2, 3, 8}) {
      for (uint64_t bytes : {uint64_t{8}, 4 * kKiB + 8, 64 * kKiB}) {
        for (Slower slower : {Slower::kNeither, Slower::kCopy, Slower::kCompute}) {
          if (device == DeviceChoice::kCuda && slower == Slower::kCopy) continue;  // only the CPU's link has a pace
          cases.push_back({device, slots, bytes, slower});
        }
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Sizes, RingData, ::testing::ValuesIn(all_cases()), case_name);

class Ring : public BackendTest {};
BACKEND_TEST(Ring);

TEST_P(Ring, HasAFixedSizeOnTheDevice) {
  {
    StagingRing ring(*device_, 3, 8 * kKiB);
    EXPECT_EQ(vram_used(), 24 * kKiB);
    EXPECT_EQ(ring.slots(), 3);
    EXPECT_EQ(ring.slot_bytes(), 8 * kKiB);
  }
  EXPECT_EQ(vram_used(), 0u);
  EXPECT_THROW(StagingRing(*device_, 3, 32 * kMiB), Error);
}

TEST_P(Ring, StartsAnewAfterReset) {
  PinnedBuffer source = device_->allocate_pinned(kKiB, "source");
  PinnedBuffer result = device_->allocate_pinned(kKiB, "result");
  StagingRing ring(*device_, 2, kKiB);
  ring.fill(0, source.data(), kKiB, *copy_);
  ring.acquire(0, *compute_);
  ring.release(0, *compute_);
  ring.fill(1, source.data(), kKiB, *copy_);
  ring.fill(2, source.data(), kKiB, *copy_);
  ring.reset(*copy_);
  std::memset(source.data(), 7, kKiB);
  ring.fill(0, source.data(), kKiB, *copy_);
  ring.fill(1, source.data(), kKiB, *copy_);
  const std::byte* const staged = ring.acquire(0, *compute_);
  compute_->copy(result.data(), staged, kKiB, Link::kDeviceToHost);
  compute_->synchronize();
  EXPECT_EQ(result.data()[kKiB - 1], std::byte{7});
  ring.release(0, *compute_);
  copy_->synchronize();
}

TEST(RingDeathTest, RefusesCallsOutOfOrder) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto device = open_cpu();
  PinnedBuffer source = device->allocate_pinned(kKiB, "source");
  StagingRing ring(*device, 2, kKiB);
  const auto copy = device->make_stream("copy", StreamRole::kCopy);
  EXPECT_DEATH(ring.fill(1, source.data(), kKiB, *copy), "fill 1 where 0 is next");
  EXPECT_DEATH(ring.acquire(0, *copy), "acquire 0");
  EXPECT_DEATH(ring.release(0, *copy), "release 0");
  EXPECT_DEATH(ring.fill(0, source.data(), kKiB + 1, *copy), "bytes=1025");
  ring.fill(0, source.data(), kKiB, *copy);
  ring.fill(1, source.data(), kKiB, *copy);
  EXPECT_DEATH(ring.fill(2, source.data(), kKiB, *copy), "all 2 slots are taken");
  ring.acquire(0, *copy);
  EXPECT_DEATH(ring.fill(2, source.data(), kKiB, *copy), "all 2 slots are taken");
  EXPECT_DEATH(ring.reset(*copy), "fill 0 is acquired");
  ring.release(0, *copy);
  ring.fill(2, source.data(), kKiB, *copy);
  copy->synchronize();
}

}  // namespace
}  // namespace headrace
