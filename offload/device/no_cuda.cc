// Replaces the CUDA body in a build without CUDA.
#include "offload/device/backends.h"
#include "offload/device/stopwatch.h"

namespace headrace {
namespace {

constexpr const char* kWhy = "this build has no CUDA backend";

}  // namespace

bool cuda_usable() noexcept { return false; }

std::unique_ptr<Device> open_cuda_device(const DeviceOptions&, NoCuda* no_cuda) {
  *no_cuda = {ExitCode::kUsage, kWhy};
  return nullptr;
}

std::unique_ptr<Stopwatch> make_cuda_stopwatch(Stream&) { return nullptr; }  // there are no CUDA streams

std::vector<DeviceListing> list_cuda_devices() { return {{"cuda", "no GPU", kWhy}}; }

}  // namespace headrace
