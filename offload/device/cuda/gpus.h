// Which GPUs there are, which of them can be used, and why not. Makes no context. Opens cuBLASLt where there is one
// that can be used. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

struct Gpu {
  int index = 0;  // CUDA's: cuda:0
  std::string name, pci_bus_id;
  int major = 0, minor = 0;  // compute capability
  uint64_t total_bytes = 0;
  std::string unusable;  // why not; empty: it can be used
};

struct Gpus {
  std::vector<Gpu> all;
  std::string none;  // why there are none; empty when there are
};

Gpus find_gpus();

}  // namespace headrace
