#include "offload/device/device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "cache/base.h"
#include "tests/offload/device/backend_test.h"

namespace headrace {
namespace {

DeviceOptions small() { return small_device(DeviceChoice::kCpu); }

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

TEST(DeviceDeathTest, NamesABadOption) {
  DeviceOptions options = small();
  for (const int threads : {-1, 1025}) {
    options.threads = threads;
    EXPECT_DEATH(open_device(options), str("threads=", threads));
  }
  for (double speed : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    options = small();
    options.copy_gb_per_s = speed;
    EXPECT_DEATH(open_device(options), "copy_gb_per_s=");
  }
}

TEST(Device, CudaIsThereOrIsRefusedAsUsage) {
  DeviceOptions options = small();
  if (cuda_usable()) options = small_device(DeviceChoice::kCuda);
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
  const auto automatic = open_device(options);
  EXPECT_EQ(automatic->backend(), found);
  EXPECT_EQ(automatic->fallback_reason().empty(), found == Backend::kCuda);  // says why
}

TEST(Device, RefusesAGpuThatIsNotThere) {
  DeviceOptions options = small();
  options.choice = DeviceChoice::kCuda;
  options.cuda_index = 99;
  EXPECT_EQ(refusal(options).code(), ExitCode::kUsage);
  EXPECT_EQ(refusal(options).info().where, "--device");
  const std::string expected = cuda_usable() ? "cuda: there is no cuda:99, only cuda:0" : "cuda: ";
  EXPECT_EQ(refusal(options).info().what.find(expected), 0u);
}

TEST(Device, ListsThemAll) {
  const std::vector<DeviceListing> devices = list_devices();
  ASSERT_GE(devices.size(), 2u);
  EXPECT_EQ(devices.back().id, "cpu");
  EXPECT_EQ(devices.back().unusable, "");
  EXPECT_NE(devices.back().description.find(" core"), std::string::npos);
  bool usable = false;
  for (size_t i = 0; i + 1 < devices.size(); ++i) {
    EXPECT_EQ(devices[i].id.find("cuda"), 0u);
    usable = usable || devices[i].unusable.empty();
  }
  EXPECT_EQ(usable, cuda_usable());
}

// ---- On either backend --------------------------------------------------------------------------------------------

class Devices : public BackendTest {};
BACKEND_TEST(Devices);

TEST_P(Devices, SayWhatTheyAre) {
  EXPECT_EQ(device_->backend(), cuda() ? Backend::kCuda : Backend::kCpu);
  EXPECT_EQ(copy_->backend(), device_->backend());
  EXPECT_FALSE(device_->name().empty());
  EXPECT_EQ(device_->threads(), 2);
  EXPECT_EQ(device_->vram().flag(), "--vram");
  EXPECT_EQ(device_->host_mem().flag(), "--host-mem");
  EXPECT_EQ(device_->host_mem().limit_bytes(), kSmallHost);
  EXPECT_EQ(device_->vram().free_bytes(), kSmallVram);
  EXPECT_EQ(device_->fallback_reason(), "");
}

TEST_P(Devices, AllocateFromTheRightBudget) {
  const uint64_t shared = cuda() ? 0 : 1;  // on the CPU device memory comes out of the host's
  auto device_memory = device_->allocate(10 * kMiB, "weights");
  EXPECT_EQ(vram_used(), 10 * kMiB);
  EXPECT_EQ(device_->host_mem().used_bytes(), shared * 10 * kMiB);
  auto pinned = device_->allocate_pinned(20 * kMiB, "the cache");
  EXPECT_EQ(vram_used(), 10 * kMiB);
  EXPECT_EQ(device_->host_mem().used_bytes(), shared * 10 * kMiB + 20 * kMiB);
  device_memory = {};
  EXPECT_EQ(vram_used(), 0u);
  EXPECT_EQ(device_->host_mem().used_bytes(), 20 * kMiB);
  EXPECT_EQ(device_->host_mem().peak_bytes(), shared * 10 * kMiB + 20 * kMiB);
  EXPECT_EQ(device_->vram().peak_bytes(), 10 * kMiB + taken_bytes(GetParam()));
}

TEST_P(Devices, RefuseOverBudget) {
  auto held = device_->allocate(60 * kMiB, "weights");
  try {
    auto more = device_->allocate(8 * kMiB, "the staging ring");
    FAIL() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_EQ(error.info().where, "--vram");
    EXPECT_EQ(error.info().what, str("needs 8.00 MiB for the staging ring, 4.00 MiB of ",
                                     format_bytes(device_->vram().limit_bytes()), " are free"));
  }
  for (uint64_t bytes : {UINT64_MAX, UINT64_MAX - 4095, UINT64_MAX - 4096, UINT64_MAX / 2}) {
    EXPECT_THROW(device_->allocate(bytes, "absurd"), Error) << bytes;
    EXPECT_THROW(device_->allocate_pinned(bytes, "absurd"), Error) << bytes;
  }
  EXPECT_EQ(vram_used(), 60 * kMiB);
}

TEST_P(Devices, RefuseWhatTheMachineDoesNotHave) {
  DeviceOptions options = small_device(GetParam());
  options.vram_bytes = uint64_t{1} << 50;
  EXPECT_EQ(refusal(options).code(), ExitCode::kDoesNotFit);
  EXPECT_EQ(refusal(options).info().where, "--vram");
  EXPECT_EQ(refusal(options).info().what.find("1024.00 TiB is more than "), 0u) << refusal(options).info().what;
  options = small_device(GetParam());
  options.host_mem_bytes = uint64_t{1} << 50;
  EXPECT_EQ(refusal(options).info().where, "--host-mem");
}

class Buffers : public BackendTest {};
BACKEND_TEST(Buffers);

TEST_P(Buffers, AreZeroAlignedAndWritableToTheirEnd) {
  for (uint64_t bytes :
       {uint64_t{1}, uint64_t{4095}, 4 * kKiB, 4 * kKiB + 1, 2 * kMiB, 2 * kMiB + 1, 5 * kMiB + 12345}) {
    for (int round = 0; round < 2; ++round) {  // the second may get the first one's place
      const auto buffer = device_->allocate(bytes, "test");
      ASSERT_TRUE(buffer);
      EXPECT_EQ(buffer.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (cuda() ? 256 : 4096), 0u);
      EXPECT_EQ(read(buffer), std::vector<std::byte>(bytes, std::byte{0}));
      fill(buffer, std::byte{0xff});
      EXPECT_EQ(read(buffer), std::vector<std::byte>(bytes, std::byte{0xff}));
      EXPECT_EQ(vram_used(), round_up(bytes, 4 * kKiB));  // pages are what memory comes in
    }
  }
  EXPECT_EQ(vram_used(), 0u);
}

TEST_P(Buffers, PinnedAreZeroAlignedAndWritableToTheirEnd) {
  for (uint64_t bytes : {uint64_t{1}, 4 * kKiB + 1, 2 * kMiB - 1, 2 * kMiB, 100 * kMiB + 1}) {  // the last: in threads
    for (int round = 0; round < 2; ++round) {
      const auto buffer = device_->allocate_pinned(bytes, "test");
      ASSERT_TRUE(buffer);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
      EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
      std::fill(buffer.data(), buffer.data() + bytes, std::byte{0xff});
      EXPECT_EQ(device_->host_mem().used_bytes(), round_up(bytes, 4 * kKiB));
    }
  }
  EXPECT_EQ(device_->host_mem().used_bytes(), 0u);
}

TEST_P(Buffers, OfNothingAreEmpty) {
  auto buffer = device_->allocate(0, "nothing");
  EXPECT_FALSE(buffer);
  EXPECT_EQ(buffer.bytes(), 0u);
  EXPECT_FALSE(device_->allocate_pinned(0, "nothing"));
  EXPECT_EQ(vram_used(), 0u);
}

TEST_P(Buffers, MoveAndFreeOnce) {
  auto a = device_->allocate_pinned(4 * kMiB, "a");
  std::byte* const at = a.data();
  PinnedBuffer b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT: the moved-from state is what is tested
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(a.bytes(), 0u);
  EXPECT_EQ(b.data(), at);
  EXPECT_EQ(b.as<float>(), reinterpret_cast<float*>(at));
  auto c = device_->allocate_pinned(8 * kMiB, "c");
  c = std::move(b);  // frees the 8 MiB
  EXPECT_EQ(c.data(), at);
  EXPECT_EQ(device_->host_mem().used_bytes(), 4 * kMiB);
  auto& same = c;
  c = std::move(same);
  EXPECT_EQ(c.data(), at);
  c.data()[0] = std::byte{1};
  c = {};
  EXPECT_EQ(device_->host_mem().used_bytes(), 0u);
}

TEST_P(Buffers, GiveTheirPagesBackAtOnce) {
  const uint64_t before = resident_bytes();
  auto buffer = device_->allocate_pinned(32 * kMiB, "test");
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
