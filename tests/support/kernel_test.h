// The base of every kernel test: a device and a compute stream for each backend and CPU instruction set of this
// machine, arrays in device memory with guard bytes around them, seeded values with outliers, and comparison with a
// tolerance per element type. A test body does not see the backend, so the same one runs on all.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cache/base.h"
#include "kernels/cpu/isa.h"
#include "offload/device/device.h"

namespace headrace::testing_support {

struct KernelTarget {
  DeviceChoice device = DeviceChoice::kCpu;
  kernels::Isa isa = kernels::Isa::kBaseline;  // CPU only
};
std::vector<KernelTarget> kernel_targets();  // those of this machine; CUDA's test instances end in "/cuda"
std::vector<KernelTarget> cpu_targets();     // those of the CPU
std::string target_name(const ::testing::TestParamInfo<KernelTarget>& info);
void PrintTo(const KernelTarget& target, std::ostream* out);

// Bytes in device memory between two guards. `data` is aligned to 64 bytes; the second guard follows directly.
struct DeviceArray {
  DeviceBuffer buffer;
  uint64_t bytes = 0;
  std::byte* data() const;
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }
};

// INSTANTIATE_KERNEL_TEST(MyTest) after a TEST_P(MyTest, …) of a class that derives from this one.
class KernelTest : public ::testing::TestWithParam<KernelTarget> {
 protected:
  void SetUp() override { open(2); }
  void TearDown() override;

  // Changes the number of threads. Arrays of the previous device must be gone.
  void open(int threads);
  Stream& stream() { return *stream_; }

  DeviceArray upload(const std::vector<std::byte>& bytes);
  DeviceArray upload(const std::vector<float>& values, DType type);  // rounded to the type
  template <typename T>
  DeviceArray upload_raw(const std::vector<T>& values) {
    const auto* begin = reinterpret_cast<const std::byte*>(values.data());
    return upload(std::vector<std::byte>(begin, begin + values.size() * sizeof(T)));
  }
  // An output: filled with a pattern that is a NaN in every type, so that unwritten elements show.
  DeviceArray output(uint64_t bytes);

  // Waits for the stream; fails the test if a guard was touched.
  std::vector<std::byte> download(const DeviceArray& array);
  std::vector<float> download(const DeviceArray& array, DType type);
  template <typename T>
  std::vector<T> download_raw(const DeviceArray& array) {
    const std::vector<std::byte> bytes = download(array);
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

 private:
  void close();
  std::byte* staging(uint64_t bytes);  // valid until the next call

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::optional<PinnedBuffer> staging_;  // kept, so that no copy waits for fresh pages
  kernels::Isa isa_before_ = kernels::Isa::kBaseline;
};

// INSTANTIATE_CHECK_TEST: of what an op checks before it chooses a backend.
#define INSTANTIATE_CHECK_TEST(suite)                                                                   \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(::headrace::testing_support::cpu_targets()), \
                           ::headrace::testing_support::target_name)
#define INSTANTIATE_KERNEL_TEST(suite)                                                                     \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(::headrace::testing_support::kernel_targets()), \
                           ::headrace::testing_support::target_name)

// Normal values times `scale`; about one in 200 is an outlier, up to 30 times as large.
std::vector<float> random_values(uint64_t seed, int64_t count, float scale = 1.0f);

std::vector<std::byte> encode(const std::vector<float>& values, DType type);
std::vector<float> decode(const std::vector<std::byte>& bytes, DType type);
std::vector<float> rounded(const std::vector<float>& values, DType type);  // encoded and decoded

// |actual - expected| <= one rounding to `type` + 2e-6 * magnitude, where magnitude is the sum of the absolute values
// in an element's sum (empty: |expected|). Reports the worst element.
void expect_close(const std::vector<float>& actual, const std::vector<double>& expected,
                  const std::vector<double>& magnitude, DType type, const std::string& what);

constexpr DType kAllTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

}  // namespace headrace::testing_support
