#include "offload/host/pcie.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

namespace headrace {
namespace {

std::string first_line(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// The number at the start of the text, or `otherwise`.
template <typename Number>
Number number(std::string_view text, Number otherwise) {
  Number value = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// "16.0 GT/s PCIe" -> 4; 0 for other text.
int generation_of(const std::string& speed) {
  const double transfers = number<double>(speed, 0.0);
  constexpr double kTransfers[] = {2.5, 5, 8, 16, 32, 64};
  for (int i = 0; i < 6; ++i) {
    if (transfers == kTransfers[i]) return i + 1;
  }
  return 0;
}

PcieMode mode_in(const std::string& folder, const char* which) {
  const int lanes = number(first_line(folder + "/" + which + "_link_width"), 0);
  return {.generation = generation_of(first_line(folder + "/" + which + "_link_speed")),
          .lanes = lanes > 0 && lanes <= 32 ? lanes : 0};  // 63 and 255: unknown to the card
}

int lesser(int a, int b) { return a == 0 ? b : b == 0 ? a : std::min(a, b); }

// "0-3,8,10-11"
std::vector<std::pair<int, int>> ranges(const std::string& list) {
  std::vector<std::pair<int, int>> out;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string part = list.substr(begin, end - begin);
    const size_t dash = part.find('-');
    const int first = number(part, -1);
    const int last = dash == std::string::npos ? first : number(std::string_view(part).substr(dash + 1), -1);
    if (first >= 0 && last >= first) out.emplace_back(first, last);
    begin = end + 1;
  }
  return out;
}

std::vector<std::pair<int, int>> allowed_processors(const std::string& root) {
  std::ifstream status(root + "/proc/self/status");
  constexpr std::string_view kName = "Cpus_allowed_list:";
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(kName)) continue;
    const size_t begin = line.find_first_not_of(" \t", kName.size());
    return begin == std::string::npos ? std::vector<std::pair<int, int>>() : ranges(line.substr(begin));
  }
  return {};
}

bool overlap(const std::vector<std::pair<int, int>>& a, const std::vector<std::pair<int, int>>& b) {
  for (const auto& [first, last] : a) {
    for (const auto& [other_first, other_last] : b) {
      if (first <= other_last && other_first <= last) return true;
    }
  }
  return false;
}

}  // namespace

PcieMode PcieLink::possible() const {
  return {.generation = lesser(card.generation, slot.generation), .lanes = lesser(card.lanes, slot.lanes)};
}

bool PcieLink::below_possible() const {
  const PcieMode best = possible();
  return now.known() && (now.generation < best.generation || now.lanes < best.lanes);
}

std::optional<PcieLink> read_pcie(const std::string& bus_id, const std::string& root) {
  if (bus_id.empty()) return std::nullopt;
  std::string id = bus_id;  // CUDA writes hexadecimal digits in upper case
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::error_code error;
  const std::filesystem::path device = std::filesystem::canonical(root + "/sys/bus/pci/devices/" + id, error);
  if (error) return std::nullopt;
  PcieLink link;
  link.now = mode_in(device.string(), "current");
  link.card = mode_in(device.string(), "max");
  link.slot = mode_in(device.parent_path().string(), "max");  // the port, which is the folder above
  link.numa_node = number(first_line(device.string() + "/numa_node"), -1);
  return link;
}

std::vector<int> read_numa_nodes(const std::string& root) {
  const auto allowed = allowed_processors(root);
  std::vector<int> nodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    const int node = name.starts_with("node") ? number(std::string_view(name).substr(4), -1) : -1;
    if (node >= 0 && overlap(allowed, ranges(first_line(entry.path().string() + "/cpulist")))) nodes.push_back(node);
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

}  // namespace headrace
