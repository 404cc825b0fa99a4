// How a card is connected: the PCIe link that it and its slot have agreed on, and what they could, from sysfs; which
// NUMA node it is at, and on which this process may run. Reads the files anew at every call; owns nothing. Any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace headrace {

struct PcieMode {
  int generation = 0, lanes = 0;  // 0: not known
  bool known() const { return generation > 0 && lanes > 0; }
  bool operator==(const PcieMode&) const = default;
};

struct PcieLink {
  PcieMode now, card, slot;  // agreed on; what the card can do; what the port above it can
  int numa_node = -1;        // -1: not known, or there is one

  // What both ends can do; as much of it as is known.
  PcieMode possible() const;
  // Known to run below that. A card that idles may have lowered its link: read while, or right after, it works.
  bool below_possible() const;
};

// `root` stands before /sys and /proc, for tests. None: there is no such device to be seen, as in many containers.
std::optional<PcieLink> read_pcie(const std::string& bus_id, const std::string& root = "");

// The nodes whose processors this process may run on, ascending; empty: not known.
std::vector<int> read_numa_nodes(const std::string& root = "");

}  // namespace headrace
