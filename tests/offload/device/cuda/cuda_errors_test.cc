#include "offload/device/cuda/cuda_errors.h"

#include <gtest/gtest.h>

#include "cache/base.h"

namespace headrace {
namespace {

TEST(Refusals, SayWhyThereIsNoGpu) {
  EXPECT_EQ(why_no_gpu({}), "no NVIDIA driver is installed here (its libcuda.so.1 is not found)");
  EXPECT_EQ(why_no_gpu({.driver_version = 12040, .build_version = 13000, .too_old = true, .error = "unused"}),
            "the NVIDIA driver is too old: it has CUDA 12.4, this build needs 13.0 (update the driver)");
  EXPECT_EQ(why_no_gpu({.driver_version = 13000, .build_version = 13000, .error = ""}),
            "the NVIDIA driver (CUDA 13.0) shows no GPU");
  EXPECT_EQ(why_no_gpu({.driver_version = 13010, .error = "", .visible_devices = "7"}),
            "the NVIDIA driver (CUDA 13.1) shows no GPU, with CUDA_VISIBLE_DEVICES='7'");
  EXPECT_EQ(why_no_gpu({.driver_version = 13000, .error = "cudaErrorSystemNotReady: system not yet initialized"}),
            "the NVIDIA driver (CUDA 13.0) answers cudaErrorSystemNotReady: system not yet initialized");
}

TEST(Refusals, AskForComputeCapability8) {
  Gpu gpu;
  gpu.name = "Tesla T4";
  gpu.major = 7, gpu.minor = 5;
  EXPECT_EQ(why_unusable(gpu),
            "Tesla T4 has compute capability 7.5, 8.0 is needed (an A100, an RTX 30 or a newer one)");
  for (const int major : {8, 9, 12}) {
    gpu.major = major, gpu.minor = 0;
    EXPECT_EQ(why_unusable(gpu), "") << major;
  }
}

TEST(Refusals, NameTheLibraryThatIsMissing) {
  EXPECT_EQ(why_no_cublas_lt(""), "");
  EXPECT_EQ(why_no_cublas_lt("libcublasLt.so.13: cannot open shared object file: No such file or directory"),
            "cuBLASLt cannot be used: libcublasLt.so.13: cannot open shared object file: No such file or directory "
            "(install CUDA's libcublas of that version, or name its folder in LD_LIBRARY_PATH)");
}

TEST(Refusals, SayHowFullAGpuIs) {
  EXPECT_EQ(why_full({.total_bytes = 24 * kGiB, .free_bytes = kGiB - 1}),
            "1024.00 MiB of 24.00 GiB are free, 1.00 GiB are needed; other processes hold the rest");
  EXPECT_EQ(why_full({.total_bytes = 24 * kGiB, .free_bytes = 300 * kMiB}),
            "300.00 MiB of 24.00 GiB are free, 1.00 GiB are needed; other processes hold the rest");
  EXPECT_EQ(why_full({.total_bytes = 24 * kGiB, .free_bytes = kGiB}), "");
}

std::string vram_refusal(const GpuMemory& memory, uint64_t vram_bytes) {
  Gpu gpu;
  gpu.name = "NVIDIA GeForce RTX 4090";
  try {
    check_vram(gpu, memory, vram_bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_EQ(error.info().where, "--vram");
    return error.info().what;
  }
  return "";
}

TEST(Refusals, CompareVramWithTheCardAndWithWhatIsFree) {
  const GpuMemory memory{.total_bytes = 24 * kGiB, .free_bytes = 10 * kGiB};
  EXPECT_EQ(vram_refusal(memory, 25 * kGiB),
            "25.00 GiB is more than NVIDIA GeForce RTX 4090 has: 24.00 GiB, 10.00 GiB of them free");
  EXPECT_EQ(vram_refusal(memory, 22 * kGiB),
            "22.00 GiB is more than is free on NVIDIA GeForce RTX 4090: 10.00 GiB of 24.00 GiB; the driver and other "
            "processes hold 14.00 GiB");
  EXPECT_EQ(vram_refusal(memory, 10 * kGiB), "");
  EXPECT_EQ(vram_refusal(memory, 0), "");
}

}  // namespace
}  // namespace headrace
