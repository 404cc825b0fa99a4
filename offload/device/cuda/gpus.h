// Lists the GPUs, and whether each can be used. Makes no context. Opens cuBLASLt if a GPU can be used. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

struct Gpu {
  int index = 0;  // CUDA's index: cuda:0
  std::string name, pci_bus_id;
  int major = 0, minor = 0;  // compute capability
  uint64_t total_bytes = 0;
  std::string unusable;  // the reason; empty: it can be used
};

struct Gpus {
  std::vector<Gpu> all;
  std::string none;  // why there are no GPUs; empty if there are
};

Gpus find_gpus();

}  // namespace headrace
