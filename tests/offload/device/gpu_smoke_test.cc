// The first thing to run on a machine with a GPU: that it opens, what it takes, that memory can be registered and bytes
// cross both ways at once; figures go to the output. Skips, and says why, where there is no GPU.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "tests/offload/device/backend_test.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(const std::function<void()>& work) {
  const Clock::time_point start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double gb_per_s(uint64_t bytes, double taken) { return static_cast<double>(bytes) / taken / 1e9; }

constexpr const char* kOneGpu = "HEADRACE_TEST_GPU";  // the index of the GPU to test

class GpuSmoke : public ::testing::Test {
 protected:
  void SetUp() override {
    NoCuda no_cuda;
    const char* const asked = std::getenv(kOneGpu);
    const int gpus = static_cast<int>(list_cuda_devices().size());
    const double taken = seconds([&] {  // the first that opens, or the one asked for
      gpu_ = asked != nullptr ? std::atoi(asked) : 0;
      const int last = asked != nullptr ? gpu_ : gpus - 1;
      for (;; ++gpu_) {
        device_ = open_cuda_device({.choice = DeviceChoice::kCuda, .cuda_index = gpu_}, &no_cuda);
        if (device_ != nullptr || gpu_ >= last) break;
      }
    });
    if (device_ == nullptr) {
      std::printf("NO GPU IS TESTED: %s\n", no_cuda.why.c_str());
      GTEST_SKIP() << no_cuda.why;
    }
    std::printf("%s: opened in %.0f ms; CUDA itself takes %s, --vram is %s\n", device_->name().c_str(), taken * 1e3,
                format_bytes(device_->vram().used_bytes()).c_str(),
                format_bytes(device_->vram().limit_bytes()).c_str());
  }

  std::unique_ptr<Device> device_;
  int gpu_ = 0;  // its index
};

TEST_F(GpuSmoke, Opens) {
  for (const DeviceListing& listing : list_devices()) {
    std::printf("%s: %s %s\n", listing.id.c_str(), listing.description.c_str(), listing.unusable.c_str());
  }
  EXPECT_GT(device_->vram().used_bytes(), 64 * kMiB);  // a context is never that small
  EXPECT_LT(device_->vram().used_bytes(), 2 * kGiB);
  EXPECT_GE(device_->threads(), 1);
}

// One arena as large as a long context's: at least a GiB a second, where the system hands out whole huge pages.
TEST_F(GpuSmoke, RegistersAnArenaAndCopiesBothWays) {
  constexpr uint64_t kArena = 4 * kGiB, kCopy = kGiB;
  if (device_->host_mem().free_bytes() < kArena) GTEST_SKIP() << "less than 4 GiB of host memory";
  PinnedBuffer arena;
  const double taken = seconds([&] { arena = device_->allocate_pinned(kArena, "the arena"); });
  std::printf("%s of host memory mapped, touched and registered in %.2f s\n", format_bytes(kArena).c_str(), taken);
  const DeviceBuffer in = device_->allocate(kCopy, "in"), out = device_->allocate(kCopy, "out");
  const auto to = device_->make_stream("to", StreamRole::kCopy), from = device_->make_stream("from", StreamRole::kCopy);
  const auto copy_in = [&] { to->copy(in.data(), arena.data(), kCopy, Link::kHostToDevice); };
  const auto copy_out = [&] { from->copy(arena.data() + kCopy, out.data(), kCopy, Link::kDeviceToHost); };
  for (int round = 0; round < 2; ++round) {  // the second is warm
    const double one = seconds([&] { copy_in(), to->synchronize(); });
    const double back = seconds([&] { copy_out(), from->synchronize(); });
    const double both = seconds([&] { copy_in(), copy_out(), to->synchronize(), from->synchronize(); });
    std::printf("in %.1f GB/s, out %.1f GB/s, both at once %.1f GB/s each\n", gb_per_s(kCopy, one),
                gb_per_s(kCopy, back), gb_per_s(kCopy, both));
    if (round == 1) {
      EXPECT_LT(both, one + back) << "the directions wait for each other";
    }
  }
}

TEST_F(GpuSmoke, RefusesMoreThanTheCardHas) {
  DeviceOptions options{.choice = DeviceChoice::kCuda};
  options.vram_bytes = uint64_t{1} << 50;
  NoCuda no_cuda;
  try {
    open_cuda_device(options, &no_cuda);
    FAIL() << "was not refused";
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
    EXPECT_EQ(error.info().where, "--vram");
    EXPECT_NE(error.info().what.find(" is more than NVIDIA"), std::string::npos) << error.what();
  }
}

TEST_F(GpuSmoke, NamesTheFailingCall) {
  const auto stream = device_->make_stream("failing", StreamRole::kCopy);
  const PinnedBuffer host = device_->allocate_pinned(kMiB, "host");
  try {  // a device's address that nobody allocated
    stream->copy(reinterpret_cast<void*>(uintptr_t{0x10}), host.data(), kMiB, Link::kHostToDevice);
    stream->synchronize();
    FAIL() << "was not refused";
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
    EXPECT_EQ(error.info().where.find("cuda"), 0u) << error.what();
    EXPECT_NE(error.info().what.find("cudaError"), std::string::npos) << error.what();
    EXPECT_NE(error.info().what.find("on stream 'failing'"), std::string::npos) << error.what();
  }
}

// Another process holds the memory: this one, while it asks a copy of itself, which is to open the same GPU.
TEST_F(GpuSmoke, FullCardIsRefusedWithTheNumbers) {
  if (std::getenv("HEADRACE_NIGHTLY") == nullptr) GTEST_SKIP() << "takes all of the GPU's memory: HEADRACE_NIGHTLY=1";
  const DeviceBuffer most = device_->allocate(device_->vram().free_bytes(), "most of the card");
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = str(kOneGpu, "=", gpu_, " '", self, "' --gtest_filter=GpuSmoke.Opens 2>&1");
  FILE* const child = popen(command.c_str(), "r");
  ASSERT_NE(child, nullptr);
  std::string said;
  for (int c = std::fgetc(child); c != EOF; c = std::fgetc(child)) said += static_cast<char>(c);
  EXPECT_EQ(WEXITSTATUS(pclose(child)), 0) << said;
  std::printf("%s", said.c_str());
  EXPECT_NE(said.find(str("NO GPU IS TESTED: cuda:", gpu_, ", ")), std::string::npos) << said;
  EXPECT_NE(said.find("other processes hold the rest"), std::string::npos) << said;
}

}  // namespace
}  // namespace headrace
