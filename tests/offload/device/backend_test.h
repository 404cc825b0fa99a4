// One test body for both backends: a small device of each that this machine has, and what moves bytes to and from its
// memory. BACKEND_TEST(MySuite) instantiates the TEST_P(MySuite, …) of a class that derives from BackendTest.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/base.h"
#include "offload/device/backends.h"
#include "offload/device/device.h"

namespace headrace {

constexpr uint64_t kSmallVram = 64 * kMiB, kSmallHost = 128 * kMiB;

inline std::vector<DeviceChoice> backends() {
  if (cuda_usable()) return {DeviceChoice::kCpu, DeviceChoice::kCuda};
  return {DeviceChoice::kCpu};
}

inline std::string backend_name(DeviceChoice choice) { return choice == DeviceChoice::kCuda ? "cuda" : "cpu"; }

// What the backend itself takes of --vram.
inline uint64_t taken_bytes(DeviceChoice choice) {
  if (choice != DeviceChoice::kCuda) return 0;
  static const uint64_t bytes = open_device({.choice = DeviceChoice::kCuda})->vram().used_bytes();
  return bytes;
}

// Two threads, and kSmallVram beside what the backend takes.
inline DeviceOptions small_device(DeviceChoice choice) {
  return {.choice = choice, .vram_bytes = kSmallVram + taken_bytes(choice), .host_mem_bytes = kSmallHost, .threads = 2};
}

class BackendTest : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  bool cuda() const { return GetParam() == DeviceChoice::kCuda; }
  uint64_t vram_used() const { return device_->vram().used_bytes() - taken_bytes(GetParam()); }

  std::vector<std::byte> read(const DeviceBuffer& buffer) {
    const PinnedBuffer staging = device_->allocate_pinned(buffer.bytes(), "a test's staging");
    copy_->copy(staging.data(), buffer.data(), buffer.bytes(), Link::kDeviceToHost);
    copy_->synchronize();
    return std::vector<std::byte>(staging.data(), staging.data() + staging.bytes());
  }
  void fill(const DeviceBuffer& buffer, std::byte value) {
    const PinnedBuffer staging = device_->allocate_pinned(buffer.bytes(), "a test's staging");
    std::fill(staging.data(), staging.data() + staging.bytes(), value);
    copy_->copy(buffer.data(), staging.data(), buffer.bytes(), Link::kHostToDevice);
    copy_->synchronize();
  }

  std::unique_ptr<Device> device_ = open_device(small_device(GetParam()));
  std::unique_ptr<Stream> copy_ = device_->make_stream("copy", StreamRole::kCopy);
  std::unique_ptr<Stream> compute_ = device_->make_stream("compute", StreamRole::kCompute);
};

inline std::string backend_test_name(const ::testing::TestParamInfo<DeviceChoice>& info) {
  return backend_name(info.param);
}

#define BACKEND_TEST(suite) \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, ::testing::ValuesIn(backends()), backend_test_name)

}  // namespace headrace
