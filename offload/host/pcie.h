// How a card is connected, from sysfs: the PCIe mode that card and slot use and the one they could use; the NUMA node
// of the card, and the nodes of this process. Reads the files at every call; owns nothing. Any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace headrace {

struct PcieMode {
  int generation = 0, lanes = 0;  // 0: unknown
  bool known() const { return generation > 0 && lanes > 0; }
  bool operator==(const PcieMode&) const = default;
};

struct PcieLink {
  PcieMode now, card, slot;  // in use; maximum of the card; maximum of the port above it
  int numa_node = -1;        // -1: unknown, or the machine has one node

  // The best mode that both ends support, as far as known.
  PcieMode possible() const;
  // The link runs below possible(). An idle card may lower its link, so read this during or right after work.
  bool below_possible() const;
};

// `root` is prepended to /sys and /proc, for tests. None: the device is not visible, as in many containers.
std::optional<PcieLink> read_pcie(const std::string& bus_id, const std::string& root = "");

// The NUMA nodes whose processors this process may use, ascending; empty: unknown.
std::vector<int> read_numa_nodes(const std::string& root = "");

}  // namespace headrace
