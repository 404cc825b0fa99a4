#include "cache/gpu_specs.h"

#include <algorithm>
#include <cctype>
#include <cmath>

namespace headrace {
namespace {

struct Row {
  const char *id, *name;
  double memory_gib, memory_gb_per_s, bf16_tflop_per_s, int8_tops;
  bool warp_groups;
  int generation, lanes;
};

// Rates of dense products. GeForce cards have a quarter of their int8 rate in bf16 with fp32 sums, others half of it.
constexpr Row kGpuSpecs[] = {
    {"rtx3080", "NVIDIA GeForce RTX 3080", 10, 760.3, 59.5, 238, false, 4, 16},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 24, 936.2, 71, 284, false, 4, 16},
    {"rtx3090ti", "NVIDIA GeForce RTX 3090 Ti", 24, 1008, 80, 320, false, 4, 16},
    {"rtx4060ti16g", "NVIDIA GeForce RTX 4060 Ti 16 GB", 16, 288, 44.1, 176.5, false, 4, 8},
    {"rtx4070", "NVIDIA GeForce RTX 4070", 12, 504.2, 58.3, 233.2, false, 4, 16},
    {"rtx4070tisuper", "NVIDIA GeForce RTX 4070 Ti SUPER", 16, 672.3, 88.2, 353, false, 4, 16},
    {"rtx4080", "NVIDIA GeForce RTX 4080", 16, 716.8, 97.5, 390, false, 4, 16},
    {"rtx4080super", "NVIDIA GeForce RTX 4080 SUPER", 16, 736.3, 104.4, 418, false, 4, 16},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 24, 1008, 165.2, 660.6, false, 4, 16},
    {"rtx5080", "NVIDIA GeForce RTX 5080", 16, 960, 112.6, 450.2, false, 5, 16},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 32, 1792, 209.5, 838, false, 5, 16},
    {"rtxa6000", "NVIDIA RTX A6000", 48, 768, 154.8, 309.7, false, 4, 16},
    {"l4", "NVIDIA L4", 24, 300, 121, 242, false, 4, 16},
    {"l40s", "NVIDIA L40S", 48, 864, 362, 733, false, 4, 16},
    {"a10", "NVIDIA A10", 24, 600, 125, 250, false, 4, 16},
    {"a100", "NVIDIA A100 80GB PCIe", 80, 1935, 312, 624, false, 4, 16},
    {"h100", "NVIDIA H100 SXM", 80, 3350, 989, 1979, true, 5, 16},
    {"h200", "NVIDIA H200 SXM", 141, 4800, 989, 1979, true, 5, 16},
};

// Measured on an H200, as a share of its data sheet (bench/results: profile_h200.json, kernel_gpu_bench_h200.jsonl,
// attention_gpu_bench_h200.jsonl).
constexpr double kLinkOfPeak = 0.88;       // 55.4 of 63.0 GB/s
constexpr double kWeightsOfMemory = 0.81;  // 3,880 of 4,800 GB/s
constexpr double kRowsOfMemory = 0.87;     // 4,170
constexpr double kProductOfPeak = 0.80;    // 790 of 989 TFLOP/s
constexpr double kMmaSyncOfHopper = 0.64;  // 631
constexpr double kAttentionOfMma = 0.55;   // 350 of 631
constexpr double kQueriesOfMma = 0.45;     // 284
// Prefill in 8 bits, as shares of the rate of mma.sync in int8, which is the sheet's but on Hopper. There they were
// measured (kernel_bench_h200_int8.jsonl); a Hopper card does not run other instructions beside mma.sync, so that the
// shares of the other cards are assumed to be higher.
constexpr double kMmaSyncOfHopperInt8 = 0.645;                                // 1,276 of 1,979 T/s
constexpr double kInt8ProductOfHopper = 0.73, kInt8AttentionOfHopper = 0.33;  // 933 and 422 T/s
constexpr double kInt8ProductOfMma = 0.75, kInt8AttentionOfMma = 0.65;

std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

using Words = std::vector<std::string>;

// Lower case, without the words that all cards of a maker share.
Words words_of(std::string_view name) {
  Words words;
  bool inside = false;
  for (const char c : name) {
    const bool letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (letter && !inside) words.emplace_back();
    if (letter) words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    inside = letter;
  }
  std::erase_if(words, [](const std::string& word) { return word == "nvidia" || word == "geforce"; });
  return words;
}

bool contains(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// A card's name without form factor and memory size, which drivers write in their own way.
Words model_words(const Row& row) {
  static const Words kForms = {"16", "80gb", "gb", "pcie", "sxm"};
  Words words = words_of(row.name);
  while (contains(kForms, words.back())) words.pop_back();
  return words;
}

// Whether the driver's name has a word that the sheet's lacks and that marks another card.
bool is_another(const Words& driver, const Row& row) {
  static const Words kOthers = {"ti", "super", "d", "laptop", "mobile", "max", "nvl", "pcie"};
  const Words own = words_of(row.name);
  return std::any_of(driver.begin(), driver.end(),
                     [&](const std::string& word) { return contains(kOthers, word) && !contains(own, word); });
}

GpuSpec spec_of(const Row& row) {
  return {.id = row.id,
          .name = row.name,
          .memory_gib = row.memory_gib,
          .memory_gb_per_s = row.memory_gb_per_s,
          .bf16_tflop_per_s = row.bf16_tflop_per_s,
          .int8_tops = row.int8_tops,
          .warp_groups = row.warp_groups,
          .pcie_generation = row.generation,
          .pcie_lanes = row.lanes};
}

}  // namespace

double pcie_gb_per_s(int generation, int lanes) {
  if (generation < 1 || lanes < 1) return 0;
  // Gigatransfers a second a lane: 2.5, 5, 8, 16, ...; 8 of 10 bits are data in the first two, 128 of 130 from then on.
  const double transfers = generation <= 2 ? 2.5 * generation : 8 * std::pow(2.0, generation - 3);
  return transfers * (generation <= 2 ? 0.8 : 128.0 / 130) / 8 * lanes;
}

// The card and its driver reserve about 2%.
uint64_t GpuSpec::vram_bytes() const {
  return static_cast<uint64_t>(memory_gib * 0.98 * static_cast<double>(kGiB)) / kMiB * kMiB;
}

MachineRates GpuSpec::rates() const {
  const double link = kLinkOfPeak * pcie_gb_per_s(pcie_generation, pcie_lanes);
  const double mma = bf16_tflop_per_s * (warp_groups ? kMmaSyncOfHopper : 1);
  const double int8 = int8_tops * (warp_groups ? kMmaSyncOfHopperInt8 : 1);
  return {.gpu = true,
          .to_device_gb_per_s = link,
          .to_host_gb_per_s = link,
          .weights_gb_per_s = kWeightsOfMemory * memory_gb_per_s,
          .kv_gb_per_s = kRowsOfMemory * memory_gb_per_s,
          .product_tflop_per_s = kProductOfPeak * bf16_tflop_per_s,
          .attention_tflop_per_s = kAttentionOfMma * mma,
          .queries_tflop_per_s = kQueriesOfMma * mma,
          .int8_product_tflop_per_s = (warp_groups ? kInt8ProductOfHopper : kInt8ProductOfMma) * int8,
          .int8_attention_tflop_per_s = (warp_groups ? kInt8AttentionOfHopper : kInt8AttentionOfMma) * int8};
}

std::string GpuSpec::assumed() const {
  if (warp_groups) return "";
  const auto percent = [](double share) { return std::lround(share * 100); };
  return str("products reach ", percent(kInt8ProductOfMma), "% and attention ", percent(kInt8AttentionOfMma),
             "% of its ", int8_tops, " T operations/s in int8");
}

std::vector<GpuSpec> known_gpus() {
  std::vector<GpuSpec> specs;
  for (const Row& row : kGpuSpecs) specs.push_back(spec_of(row));
  return specs;
}

GpuSpec find_gpu(std::string_view id) {
  std::string ids;
  for (const Row& row : kGpuSpecs) {
    if (plain(id) == row.id) return spec_of(row);
    ids += str(ids.empty() ? "" : ", ", row.id);
  }
  throw_error(ExitCode::kUsage, "--gpu", str("'", std::string(id), "' is not one of ", ids),
              "Measure a card that is here: headrace profile.");
}

std::optional<GpuSpec> gpu_named(std::string_view driver_name) {
  const Words driver = words_of(driver_name);
  const Row* best = nullptr;
  size_t longest = 0;
  for (const Row& row : kGpuSpecs) {
    const Words model = model_words(row);
    if (model.size() <= longest || model.size() > driver.size()) continue;
    if (!std::equal(model.begin(), model.end(), driver.begin())) continue;
    best = &row;
    longest = model.size();
  }
  if (best == nullptr || is_another(driver, *best)) return std::nullopt;
  return spec_of(*best);
}

}  // namespace headrace
