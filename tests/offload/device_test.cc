#include "offload/device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "cache/base.h"

namespace headrace {
namespace {

DeviceOptions small() {
  return {.choice = DeviceChoice::kCpu, .vram_bytes = 64 * kMiB, .host_mem_bytes = 128 * kMiB, .threads = 2};
}

Error refusal(const DeviceOptions& options) {
  try {
    open_device(options);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "the options were not refused";
  return Error(ErrorInfo{});
}

uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

TEST(Device, SaysWhatItIs) {
  const auto device = open_device(small());
  EXPECT_EQ(device->backend(), Backend::kCpu);
  EXPECT_EQ(device->name(), "CPU, 2 threads");
  EXPECT_EQ(device->threads(), 2);
  EXPECT_EQ(device->vram().limit_bytes(), 64 * kMiB);
  EXPECT_EQ(device->host_mem().limit_bytes(), 128 * kMiB);
  EXPECT_EQ(device->vram().flag(), "--vram");
  EXPECT_EQ(device->host_mem().flag(), "--host-mem");
  DeviceOptions one = small();
  one.threads = 1;
  EXPECT_EQ(open_device(one)->name(), "CPU, 1 thread");
}

TEST(Device, HasDefaults) {
  const auto device = open_device({.choice = DeviceChoice::kCpu});
  EXPECT_GE(device->threads(), 1);
  EXPECT_GT(device->host_mem().limit_bytes(), 0u);
  EXPECT_EQ(device->vram().limit_bytes(), device->host_mem().limit_bytes());
  auto buffer = device->allocate(10 * kMiB, "weights");
  EXPECT_EQ(device->host_mem().used_bytes(), 10 * kMiB);
}

TEST(Device, RefusesWhatTheMachineDoesNotHave) {
  DeviceOptions options = small();
  options.host_mem_bytes = uint64_t{1} << 50;
  EXPECT_EQ(refusal(options).code(), ExitCode::kDoesNotFit);
  EXPECT_EQ(refusal(options).info().where, "--host-mem");
  EXPECT_EQ(refusal(options).info().what.find(format_bytes(uint64_t{1} << 50) + " is more than this machine has: "),
            0u);
  options = small();
  options.vram_bytes = UINT64_MAX;
  EXPECT_EQ(refusal(options).code(), ExitCode::kDoesNotFit);
  EXPECT_EQ(refusal(options).info().where, "--vram");
}

TEST(Device, RefusesBadOptions) {
  DeviceOptions options = small();
  options.threads = -1;
  EXPECT_EQ(refusal(options).code(), ExitCode::kUsage);
  EXPECT_EQ(refusal(options).info().what, "-1 is not between 1 and 1024");
  options.threads = 1000000;
  EXPECT_EQ(refusal(options).code(), ExitCode::kUsage);
  for (double speed : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    options = small();
    options.copy_gb_per_s = speed;
    EXPECT_EQ(refusal(options).code(), ExitCode::kUsage) << speed;
  }
}

TEST(Device, CudaIsThereOrIsRefusedAsUsage) {
  DeviceOptions options = small();
  options.choice = DeviceChoice::kCuda;
  Backend found = Backend::kCpu;
  try {
    found = open_device(options)->backend();
    EXPECT_EQ(found, Backend::kCuda);  // never quietly the CPU
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_EQ(error.info().where, "--device");
    EXPECT_EQ(error.info().what.find("cuda: "), 0u);
  }
  options.choice = DeviceChoice::kAuto;
  EXPECT_EQ(open_device(options)->backend(), found);
}

TEST(Device, AllocatesFromTheRightBudget) {
  const auto device = open_device(small());
  auto device_memory = device->allocate(10 * kMiB, "weights");
  EXPECT_EQ(device->vram().used_bytes(), 10 * kMiB);
  EXPECT_EQ(device->host_mem().used_bytes(), 10 * kMiB);  // on the CPU both come out of it
  auto pinned = device->allocate_pinned(20 * kMiB, "the cache");
  EXPECT_EQ(device->vram().used_bytes(), 10 * kMiB);
  EXPECT_EQ(device->host_mem().used_bytes(), 30 * kMiB);
  device_memory = {};
  EXPECT_EQ(device->vram().used_bytes(), 0u);
  EXPECT_EQ(device->host_mem().used_bytes(), 20 * kMiB);
  EXPECT_EQ(device->host_mem().peak_bytes(), 30 * kMiB);
  EXPECT_EQ(device->vram().peak_bytes(), 10 * kMiB);
}

TEST(Device, RefusesOverBudget) {
  const auto device = open_device(small());
  auto held = device->allocate(60 * kMiB, "weights");
  try {
    auto more = device->allocate(8 * kMiB, "the staging ring");
    FAIL() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_EQ(error.info().where, "--vram");
    EXPECT_EQ(error.info().what, "needs 8.00 MiB for the staging ring, 4.00 MiB of 64.00 MiB are free");
  }
  for (uint64_t bytes : {UINT64_MAX, UINT64_MAX - 4095, UINT64_MAX - 4096, UINT64_MAX / 2}) {
    EXPECT_THROW(device->allocate(bytes, "absurd"), Error) << bytes;
    EXPECT_THROW(device->allocate_pinned(bytes, "absurd"), Error) << bytes;
  }
  EXPECT_EQ(device->vram().used_bytes(), 60 * kMiB);
}

TEST(Buffer, IsZeroAlignedAndWritableToItsEnd) {
  const auto device = open_device(small());
  for (uint64_t bytes :
       {uint64_t{1}, uint64_t{4095}, 4 * kKiB, 4 * kKiB + 1, 2 * kMiB, 2 * kMiB + 1, 5 * kMiB + 12345}) {
    for (int round = 0; round < 2; ++round) {  // the second may get the first one's place
      auto buffer = device->allocate(bytes, "test");
      ASSERT_TRUE(buffer);
      EXPECT_EQ(buffer.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
      EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
      std::fill(buffer.data(), buffer.data() + bytes, std::byte{0xff});
      EXPECT_EQ(device->vram().used_bytes(), round_up(bytes, 4 * kKiB));  // pages are what memory comes in
    }
  }
  EXPECT_EQ(device->vram().used_bytes(), 0u);
}

TEST(Buffer, OfNothingIsEmpty) {
  const auto device = open_device(small());
  auto buffer = device->allocate(0, "nothing");
  EXPECT_FALSE(buffer);
  EXPECT_EQ(buffer.bytes(), 0u);
  EXPECT_EQ(device->vram().used_bytes(), 0u);
}

TEST(Buffer, MovesAndFreesOnce) {
  const auto device = open_device(small());
  auto a = device->allocate_pinned(4 * kMiB, "a");
  std::byte* const at = a.data();
  PinnedBuffer b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT: the moved-from state is what is tested
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(a.bytes(), 0u);
  EXPECT_EQ(b.data(), at);
  EXPECT_EQ(b.as<float>(), reinterpret_cast<float*>(at));
  auto c = device->allocate_pinned(8 * kMiB, "c");
  c = std::move(b);  // frees the 8 MiB
  EXPECT_EQ(c.data(), at);
  EXPECT_EQ(device->host_mem().used_bytes(), 4 * kMiB);
  auto& same = c;
  c = std::move(same);
  EXPECT_EQ(c.data(), at);
  c.data()[0] = std::byte{1};
  c = {};
  EXPECT_EQ(device->host_mem().used_bytes(), 0u);
}

TEST(Buffer, GivesItsPagesBackAtOnce) {
  const auto device = open_device(small());
  const uint64_t before = resident_bytes();
  auto buffer = device->allocate(32 * kMiB, "test");
  std::fill(buffer.data(), buffer.data() + buffer.bytes(), std::byte{1});
  EXPECT_GE(resident_bytes(), before + 30 * kMiB);
  std::byte* const at = buffer.data();
  buffer = {};
  EXPECT_LE(resident_bytes(), before + 8 * kMiB);
  unsigned char in_core[1];
  EXPECT_EQ(mincore(at, 4096, in_core), -1);                     // ENOMEM: unmapped, the first page ...
  EXPECT_EQ(mincore(at + 32 * kMiB - 4096, 4096, in_core), -1);  // ... and the last
}

}  // namespace
}  // namespace headrace
