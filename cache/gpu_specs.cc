#include "cache/gpu_specs.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <utility>

namespace headrace {
namespace {

struct Row {
  const char *id, *name;
  double memory_gib, memory_gb_per_s, bf16_tflop_per_s, int8_tops;
  bool warp_groups;
  int generation, lanes;
};

// Rates of dense products. GeForce cards have a quarter of their int8 rate in bf16 with fp32 sums, others half of it.
// NVIDIA gives laptops the rate of the largest power limit.
constexpr Row kGpuSpecs[] = {
    {"rtx3060", "NVIDIA GeForce RTX 3060", 12, 360, 25.5, 102, false, 4, 16},
    {"rtx3060ti", "NVIDIA GeForce RTX 3060 Ti", 8, 448, 32.4, 129.6, false, 4, 16},
    {"rtx3070", "NVIDIA GeForce RTX 3070", 8, 448, 40.6, 162.6, false, 4, 16},
    {"rtx3070ti", "NVIDIA GeForce RTX 3070 Ti", 8, 608.3, 43.5, 174, false, 4, 16},
    {"rtx3080", "NVIDIA GeForce RTX 3080", 10, 760.3, 59.5, 238, false, 4, 16},
    {"rtx3080ti", "NVIDIA GeForce RTX 3080 Ti", 12, 912.4, 68.2, 272.8, false, 4, 16},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 24, 936.2, 71, 284, false, 4, 16},
    {"rtx3090ti", "NVIDIA GeForce RTX 3090 Ti", 24, 1008, 80, 320, false, 4, 16},
    {"rtx4060", "NVIDIA GeForce RTX 4060", 8, 272, 30.2, 120.9, false, 4, 8},
    {"rtx4060ti8g", "NVIDIA GeForce RTX 4060 Ti 8 GB", 8, 288, 44.1, 176.5, false, 4, 8},
    {"rtx4060ti16g", "NVIDIA GeForce RTX 4060 Ti 16 GB", 16, 288, 44.1, 176.5, false, 4, 8},
    {"rtx4070", "NVIDIA GeForce RTX 4070", 12, 504.2, 58.3, 233.2, false, 4, 16},
    {"rtx4070super", "NVIDIA GeForce RTX 4070 SUPER", 12, 504.2, 71, 283.9, false, 4, 16},
    {"rtx4070ti", "NVIDIA GeForce RTX 4070 Ti", 12, 504.2, 80.2, 320.7, false, 4, 16},
    {"rtx4070tisuper", "NVIDIA GeForce RTX 4070 Ti SUPER", 16, 672.3, 88.2, 353, false, 4, 16},
    {"rtx4080", "NVIDIA GeForce RTX 4080", 16, 716.8, 97.5, 390, false, 4, 16},
    {"rtx4080super", "NVIDIA GeForce RTX 4080 SUPER", 16, 736.3, 104.4, 418, false, 4, 16},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 24, 1008, 165.2, 660.6, false, 4, 16},
    {"rtx5060ti8g", "NVIDIA GeForce RTX 5060 Ti 8 GB", 8, 448, 47.4, 189.8, false, 5, 8},
    {"rtx5060ti16g", "NVIDIA GeForce RTX 5060 Ti 16 GB", 16, 448, 47.4, 189.8, false, 5, 8},
    {"rtx5070", "NVIDIA GeForce RTX 5070", 12, 672, 61.7, 246.9, false, 5, 16},
    {"rtx5070ti", "NVIDIA GeForce RTX 5070 Ti", 16, 896, 87.9, 351.5, false, 5, 16},
    {"rtx5080", "NVIDIA GeForce RTX 5080", 16, 960, 112.6, 450.2, false, 5, 16},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 32, 1792, 209.5, 838, false, 5, 16},
    {"rtx4060laptop", "NVIDIA GeForce RTX 4060 Laptop GPU", 8, 256, 29.1, 116.5, false, 4, 8},
    {"rtx4070laptop", "NVIDIA GeForce RTX 4070 Laptop GPU", 8, 256, 40.1, 160.5, false, 4, 8},
    {"rtx4080laptop", "NVIDIA GeForce RTX 4080 Laptop GPU", 12, 432, 67.8, 271, false, 4, 16},
    {"rtx4090laptop", "NVIDIA GeForce RTX 4090 Laptop GPU", 16, 576, 85.8, 343, false, 4, 16},
    {"rtx5070laptop", "NVIDIA GeForce RTX 5070 Laptop GPU", 8, 384, 49.9, 199.5, false, 5, 8},
    {"rtx5070tilaptop", "NVIDIA GeForce RTX 5070 Ti Laptop GPU", 12, 672, 62, 248, false, 5, 16},
    {"rtx5080laptop", "NVIDIA GeForce RTX 5080 Laptop GPU", 16, 896, 83.4, 333.5, false, 5, 16},
    {"rtx5090laptop", "NVIDIA GeForce RTX 5090 Laptop GPU", 24, 896, 114, 456, false, 5, 16},
    {"rtxa4000", "NVIDIA RTX A4000", 16, 448, 76.7, 153.4, false, 4, 16},
    {"rtxa6000", "NVIDIA RTX A6000", 48, 768, 154.8, 309.7, false, 4, 16},
    {"l4", "NVIDIA L4", 24, 300, 121, 242, false, 4, 16},
    {"l40s", "NVIDIA L40S", 48, 864, 362, 733, false, 4, 16},
    {"a10", "NVIDIA A10", 24, 600, 125, 250, false, 4, 16},
    {"a100", "NVIDIA A100 80GB PCIe", 80, 1935, 312, 624, false, 4, 16},
    {"h100", "NVIDIA H100 SXM", 80, 3350, 989, 1979, true, 5, 16},
    {"h200", "NVIDIA H200 SXM", 141, 4800, 989, 1979, true, 5, 16},
};

// Dense bf16 products for a byte of memory bandwidth: no card of the list has less.
constexpr double kLeastTflopPerGb = 0.07;

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
  static const Words kForms = {"8", "16", "80gb", "gb", "pcie", "sxm"};
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

// "4090" is "rtx4090".
bool is_named(std::string_view id, const Row& row) { return plain(id) == row.id || "rtx" + plain(id) == row.id; }

[[noreturn]] void refuse_figures(const std::string& what) {
  throw_error(
      ExitCode::kUsage, "--gpu", what,
      "Such as vram=12GiB,bandwidth=360,link=13,tflops=25,tops=102: rates in GB/s, tflops in bf16, tops in int8");
}

// A positive number, and a unit where one may follow.
double figure(const std::string& key, const std::string& value, double* unit) {
  size_t end = 0;
  double number = 0;
  try {
    number = std::stod(value, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string rest = value.substr(end);
  const bool gb = rest == "GB", gib = rest.empty() || rest == "GiB" || rest == "G";
  const bool known = unit == nullptr ? rest.empty() : gb || gib;
  if (end == 0 || !known || !(number > 0 && number < 1e5))
    refuse_figures(str("'", key, "=", value, "' is not a positive number", unit == nullptr ? "" : " such as 12GiB"));
  if (unit != nullptr) *unit = gb ? 1e9 / static_cast<double>(kGiB) : 1;
  return number;
}

GpuSpec spec_of_figures(const std::string& text) {
  GpuSpec spec{.id = text, .name = "a card of " + text};
  double gib = 1;
  const std::pair<const char*, double*> figures[] = {{"vram", &spec.memory_gib},
                                                     {"bandwidth", &spec.memory_gb_per_s},
                                                     {"link", &spec.link_gb_per_s},
                                                     {"tflops", &spec.bf16_tflop_per_s},
                                                     {"tops", &spec.int8_tops}};
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin), key = part.substr(0, part.find('='));
    const auto* const found =
        std::find_if(std::begin(figures), std::end(figures), [&](const auto& f) { return key == f.first; });
    if (found == std::end(figures) || key.size() == part.size())
      refuse_figures(str("'", part, "' is not one of vram=, bandwidth=, link=, tflops= and tops="));
    if (*found->second > 0) refuse_figures(str("'", key, "' is given twice"));
    *found->second = figure(key, part.substr(key.size() + 1), key == "vram" ? &gib : nullptr);
    begin = end + 1;
  }
  if (spec.memory_gib <= 0 || spec.memory_gb_per_s <= 0) refuse_figures("vram and bandwidth are needed");
  spec.memory_gib *= gib;
  spec.assumed_compute = spec.bf16_tflop_per_s <= 0;
  if (spec.assumed_compute) spec.bf16_tflop_per_s = kLeastTflopPerGb * spec.memory_gb_per_s;
  if (spec.int8_tops <= 0) spec.int8_tops = 4 * spec.bf16_tflop_per_s;
  return spec;
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
  const double link = link_gb_per_s > 0 ? link_gb_per_s : kLinkOfPeak * pcie_gb_per_s(pcie_generation, pcie_lanes);
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
  const std::string guessed =
      assumed_compute ? str("it has ", bf16_tflop_per_s, " TFLOP/s in bf16 (tflops=... sets it); ") : "";
  return str(guessed, "products reach ", percent(kInt8ProductOfMma), "% and attention ", percent(kInt8AttentionOfMma),
             "% of its ", int8_tops, " T operations/s in int8");
}

std::vector<GpuSpec> known_gpus() {
  std::vector<GpuSpec> specs;
  for (const Row& row : kGpuSpecs) specs.push_back(spec_of(row));
  return specs;
}

bool is_gpu(std::string_view id) {
  return id.starts_with("vram=") || id.find(",vram=") != std::string_view::npos ||
         std::any_of(std::begin(kGpuSpecs), std::end(kGpuSpecs), [&](const Row& row) { return is_named(id, row); });
}

GpuSpec find_gpu(std::string_view id) {
  if (id.find('=') != std::string_view::npos) return spec_of_figures(std::string(id));
  std::string ids;
  for (const Row& row : kGpuSpecs) {
    if (is_named(id, row)) return spec_of(row);
    ids += str(ids.empty() ? "" : ", ", row.id);
  }
  throw_error(ExitCode::kUsage, "--gpu", str("'", std::string(id), "' is not one of ", ids),
              "Give its figures: --gpu vram=12GiB,bandwidth=360. Measure a card that is here: headrace profile.");
}

std::optional<GpuSpec> gpu_named(std::string_view driver_name) {
  const Words driver = words_of(driver_name);
  for (const Row& row : kGpuSpecs) {
    if (words_of(row.name) == driver) return spec_of(row);
  }
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
