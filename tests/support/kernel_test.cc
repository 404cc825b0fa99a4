#include "tests/support/kernel_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include "offload/device/backends.h"

namespace headrace::testing_support {

namespace {

constexpr uint64_t kGuardBytes = 256;
constexpr std::byte kGuard{0xa5};
constexpr std::byte kUnwritten{0xff};  // a NaN in f32, f16 and bf16

}  // namespace

std::vector<KernelTarget> cpu_targets() {
  std::vector<KernelTarget> targets;
  for (kernels::Isa isa : kernels::kAllIsas) {
    if (kernels::isa_supported(isa)) targets.push_back({DeviceChoice::kCpu, isa});
  }
  return targets;
}

std::vector<KernelTarget> kernel_targets() {
  std::vector<KernelTarget> targets = cpu_targets();
  if (cuda_usable()) targets.push_back({DeviceChoice::kCuda, kernels::Isa::kBaseline});
  return targets;
}

std::string target_name(const ::testing::TestParamInfo<KernelTarget>& info) {
  return info.param.device == DeviceChoice::kCuda ? "cuda" : str("cpu_", kernels::isa_name(info.param.isa));
}

void PrintTo(const KernelTarget& target, std::ostream* out) {
  *out << (target.device == DeviceChoice::kCuda ? "cuda" : kernels::isa_name(target.isa));
}

std::byte* DeviceArray::data() const { return buffer.data() + kGuardBytes; }

void KernelTest::open(int threads) {
  if (!device_) isa_before_ = kernels::isa();
  close();
  kernels::set_isa(GetParam().isa);
  DeviceOptions options;
  options.choice = GetParam().device;
  options.threads = threads;
  device_ = open_device(options);
  stream_ = device_->make_stream("test", StreamRole::kCompute);
}

void KernelTest::close() {
  staging_.reset();
  stream_.reset();
  device_.reset();
}

void KernelTest::TearDown() {
  close();
  kernels::set_isa(isa_before_);
}

std::byte* KernelTest::staging(uint64_t bytes) {
  if (!staging_ || staging_->bytes() < bytes) staging_ = device_->allocate_pinned(bytes, "a test's staging");
  return staging_->data();
}

DeviceArray KernelTest::upload(const std::vector<std::byte>& bytes) {
  DeviceArray array{device_->allocate(bytes.size() + 2 * kGuardBytes, "a test's array"), bytes.size()};
  std::byte* const from = staging(array.buffer.bytes());
  std::memset(from, static_cast<int>(kGuard), array.buffer.bytes());
  std::copy(bytes.begin(), bytes.end(), from + kGuardBytes);
  stream_->copy(array.buffer.data(), from, array.buffer.bytes(), Link::kHostToDevice);
  stream_->synchronize();
  return array;
}

DeviceArray KernelTest::upload(const std::vector<float>& values, DType type) { return upload(encode(values, type)); }

DeviceArray KernelTest::output(uint64_t bytes) { return upload(std::vector<std::byte>(bytes, kUnwritten)); }

std::vector<std::byte> KernelTest::download(const DeviceArray& array) {
  std::byte* const to = staging(array.buffer.bytes());
  stream_->copy(to, array.buffer.data(), array.buffer.bytes(), Link::kDeviceToHost);
  stream_->synchronize();
  const std::byte* begin = to + kGuardBytes;
  const std::byte* end = begin + array.bytes;
  const auto intact = [](std::byte value) { return value == kGuard; };
  EXPECT_TRUE(std::all_of(to, to + kGuardBytes, intact)) << "written before the array";
  EXPECT_TRUE(std::all_of(end, end + kGuardBytes, intact)) << "written beyond the array";
  return std::vector<std::byte>(begin, end);
}

std::vector<float> KernelTest::download(const DeviceArray& array, DType type) { return decode(download(array), type); }

namespace {

// In [0, 1). This and Normal give the values of libstdc++'s distributions, which take a long double's logarithm for
// each value: clang does not fold it.
float uniform(std::mt19937_64* generator) {
  return std::min(static_cast<float>((*generator)()) / 0x1p64f, 0x1.fffffep-1f);
}

// Marsaglia's polar method: two values at a time.
class Normal {
 public:
  float operator()(std::mt19937_64* generator) {
    if (kept_) return *std::exchange(kept_, std::nullopt);
    float x, y, square;
    do {
      x = 2.0f * uniform(generator) - 1.0f;
      y = 2.0f * uniform(generator) - 1.0f;
      square = x * x + y * y;
    } while (square > 1.0f || square == 0.0f);
    const float factor = std::sqrt(-2.0f * std::log(square) / square);
    kept_ = x * factor;
    return y * factor;
  }

 private:
  std::optional<float> kept_;
};

}  // namespace

std::vector<float> random_values(uint64_t seed, int64_t count, float scale) {
  std::mt19937_64 generator(seed);
  Normal normal;
  std::uniform_int_distribution<int> one_in_200(0, 199);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = normal(&generator) * scale;
    if (one_in_200(generator) == 0) value *= 5.0f + 25.0f * uniform(&generator);
  }
  return values;
}

std::vector<std::byte> encode(const std::vector<float>& values, DType type) {
  std::vector<std::byte> bytes(values.size() * dtype_bytes(type));
  for (size_t i = 0; i < values.size(); ++i) {
    std::byte* to = bytes.data() + i * dtype_bytes(type);
    if (type == DType::kF32) {
      std::memcpy(to, &values[i], 4);
    } else {
      const uint16_t bits = type == DType::kBF16 ? f32_to_bf16(values[i]).bits : f32_to_f16(values[i]).bits;
      std::memcpy(to, &bits, 2);
    }
  }
  return bytes;
}

std::vector<float> decode(const std::vector<std::byte>& bytes, DType type) {
  std::vector<float> values(bytes.size() / dtype_bytes(type));
  for (size_t i = 0; i < values.size(); ++i) {
    const std::byte* from = bytes.data() + i * dtype_bytes(type);
    if (type == DType::kF32) {
      std::memcpy(&values[i], from, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, from, 2);
      values[i] = type == DType::kBF16 ? bf16_to_f32({bits}) : f16_to_f32({bits});
    }
  }
  return values;
}

std::vector<float> rounded(const std::vector<float>& values, DType type) { return decode(encode(values, type), type); }

void expect_close(const std::vector<float>& actual, const std::vector<double>& expected,
                  const std::vector<double>& magnitude, DType type, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  // A result next to a rounding border may round to the other side: half a unit in the last place, and the fp32 error.
  // Tensor cores truncate as they add: 2.001e-6 of the magnitude was seen at 1,536 products of f16 (H200).
  constexpr double kSumError = 3e-6;
  const double rounding = type == DType::kF32 ? 0x1p-23 : type == DType::kF16 ? 0x1.01p-11 : 0x1.01p-8;
  // Of its subnormals; and an attention's weight that is less than 2^-100 of the largest may be flushed to 0.
  const double smallest = type == DType::kF32 ? 1e-37 : type == DType::kF16 ? 0x1p-25 : 1e-30;
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double scale = magnitude.empty() ? std::fabs(expected[i]) : magnitude[i];
    const double allowed = rounding * std::fabs(expected[i]) + kSumError * scale + smallest;
    const double error = std::fabs(actual[i] - expected[i]) / allowed;
    if (!(error <= worst)) {  // NaN is worse than anything
      worst = std::isnan(error) ? 1e300 : error;
      where = i;
    }
  }
  EXPECT_LE(worst, 1.0) << what << ": element " << where << " of " << actual.size() << " is " << actual[where]
                        << ", expected " << expected[where];
}

}  // namespace headrace::testing_support
