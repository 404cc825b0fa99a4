#include "offload/device/cuda/cuda_errors.h"

#include "cache/base.h"

namespace headrace {
namespace {

constexpr int kMinMajor = 8;  // sm_80: cp.async and bf16 mma.sync
constexpr uint64_t kMinFree = kGiB;

std::string version_text(int version) { return str(version / 1000, ".", version % 1000 / 10); }

}  // namespace

std::string why_no_gpu(const DriverState& state) {
  if (state.driver_version == 0) return "no NVIDIA driver is installed here (its libcuda.so.1 is not found)";
  if (state.too_old) {
    return str("the NVIDIA driver is too old: it has CUDA ", version_text(state.driver_version), ", this build needs ",
               version_text(state.build_version), " (update the driver)");
  }
  const std::string what = state.error.empty() ? "shows no GPU" : "answers " + state.error;
  const std::string narrowed =
      state.visible_devices == nullptr ? "" : str(", with CUDA_VISIBLE_DEVICES='", state.visible_devices, "'");
  return str("the NVIDIA driver (CUDA ", version_text(state.driver_version), ") ", what, narrowed);
}

std::string why_unusable(const Gpu& gpu) {
  if (gpu.major >= kMinMajor) return "";
  return str(gpu.name, " has compute capability ", gpu.major, ".", gpu.minor, ", ", kMinMajor,
             ".0 is needed (an A100, an RTX 30 or a newer one)");
}

std::string why_no_cublas_lt(const std::string& error) {
  if (error.empty()) return "";
  return str("cuBLASLt cannot be used: ", error,
             " (install CUDA's libcublas of that version, or name its folder in LD_LIBRARY_PATH)");
}

std::string why_full(const GpuMemory& memory) {
  if (memory.free_bytes >= kMinFree) return "";
  return str(memory_text(memory), ", ", format_bytes(kMinFree), " are needed; other processes hold the rest");
}

void check_vram(const Gpu& gpu, const GpuMemory& memory, uint64_t vram_bytes) {
  if (vram_bytes <= memory.free_bytes) return;
  const std::string what = vram_bytes > memory.total_bytes
                               ? str(" is more than ", gpu.name, " has: ", format_bytes(memory.total_bytes), ", ",
                                     format_bytes(memory.free_bytes), " of them free")
                               : str(" is more than is free on ", gpu.name, ": ", format_bytes(memory.free_bytes),
                                     " of ", format_bytes(memory.total_bytes), "; the driver and other processes hold ",
                                     format_bytes(memory.total_bytes - memory.free_bytes));
  throw_error(ExitCode::kDoesNotFit, "--vram", format_bytes(vram_bytes) + what, "set --vram lower, or leave it out");
}

std::string memory_text(const GpuMemory& memory) {
  return str(format_bytes(memory.free_bytes), " of ", format_bytes(memory.total_bytes), " are free");
}

}  // namespace headrace
