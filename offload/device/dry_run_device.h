// A simulated device for planning: a card known from its data sheet, or a copy of a real device's limits. Its budgets
// are real, its memory consists of addresses that must not be accessed, and nothing runs on it. A plan on it uses the
// code of a real run and allocates nothing. Threads as device.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cache/base.h"
#include "offload/device/device.h"

namespace headrace {

struct DryRunCard {
  std::string name;      // "NVIDIA H200"
  std::string driver{};  // as Device::driver()
  Backend backend = Backend::kCuda;
  uint64_t vram_bytes = 0, host_bytes = 0;  // the budgets; on the CPU vram_bytes is part of host_bytes
  uint64_t taken_bytes = 0;                 // part of vram_bytes, used by the system
  int threads = 1;
};

std::unique_ptr<Device> open_dry_run_device(const DryRunCard& card);

// The properties and the free memory of a device.
DryRunCard dry_run_of(Device& device);

// Assumed size of the CUDA context on a card that is not present.
constexpr uint64_t kDryRunContextBytes = 704 * kMiB;

}  // namespace headrace
