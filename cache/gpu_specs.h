// Common cards by their data sheets, for plans without the card. The share of a sheet's peaks that kernels and links
// reach comes from one measured card. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cost.h"

namespace headrace {

struct GpuSpec {
  std::string id;         // "rtx4090", as --gpu takes it
  std::string name;       // "NVIDIA GeForce RTX 4090"
  double memory_gib = 0;  // as it is sold
  double memory_gb_per_s = 0;
  double bf16_tflop_per_s = 0;  // dense, sums in fp32
  bool warp_groups = false;     // Hopper: mma.sync, which our attention uses, reaches a part of that peak
  int pcie_generation = 4, pcie_lanes = 16;

  // What a system sees of the memory.
  uint64_t vram_bytes() const;
  MachineRates rates() const;
};

std::vector<GpuSpec> known_gpus();
// Upper and lower case, blanks and dashes do not matter: "RTX 4090". Throws Error(kUsage) that lists the ids.
GpuSpec find_gpu(std::string_view id);
// The card that a driver names so: "NVIDIA A100-SXM4-80GB" is an A100. Whole words, the longest of the names that it
// begins with; none where a word more says that it is another card: "RTX 4090 Laptop GPU".
std::optional<GpuSpec> gpu_named(std::string_view driver_name);

// What a link of so many lanes carries at best each way, its encoding counted, headers not; GB/s.
double pcie_gb_per_s(int generation, int lanes);

}  // namespace headrace
