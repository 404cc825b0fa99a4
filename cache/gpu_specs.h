// Data-sheet figures of common cards, for plans without the card. The share of the sheet's peaks that kernels and links
// reach was measured on one card. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cost.h"

namespace headrace {

struct GpuSpec {
  std::string id;         // "rtx4090", the value of --gpu
  std::string name;       // "NVIDIA GeForce RTX 4090"
  double memory_gib = 0;  // nominal
  double memory_gb_per_s = 0;
  double bf16_tflop_per_s = 0;  // dense, fp32 accumulation
  double int8_tops = 0;         // dense, T operations/s
  bool warp_groups = false;     // Hopper: our attention uses mma.sync, which reaches only a part of that peak
  int pcie_generation = 4, pcie_lanes = 16;
  double link_gb_per_s = 0;  // reached in one direction; 0: a share of the peak of PCIe
  bool assumed_compute =
      false;  // the rates of products are not of a sheet, but of what slow cards have beside such memory

  // Device memory as the driver reports it.
  uint64_t vram_bytes() const;
  MachineRates rates() const;
  // What is assumed of its prefill in 8 bits, since no card of its kind was measured; empty: nothing.
  std::string assumed() const;
};

std::vector<GpuSpec> known_gpus();
// Ignores case, blanks and dashes: "RTX 4090", or "4090". Also a card by its figures, separated by commas:
// "vram=12GiB,bandwidth=360" and, if known, link, tflops (bf16, dense) and tops (int8, dense); rates in GB/s. Throws
// Error(kUsage) with the list of ids, or with the figure that is wrong.
GpuSpec find_gpu(std::string_view id);
bool is_gpu(std::string_view id);  // a card's id, or figures, which may be wrong
// The card with this driver name: "NVIDIA A100-SXM4-80GB" is an A100. Compares whole words and prefers the longest
// match. None if a further word marks another card: "RTX 4090 Laptop GPU".
std::optional<GpuSpec> gpu_named(std::string_view driver_name);

// Peak of a link in one direction, in GB/s: after line encoding, before packet headers.
double pcie_gb_per_s(int generation, int lanes);

}  // namespace headrace
