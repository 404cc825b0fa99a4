#include "offload/host/machine.h"

#include <fstream>

#include "offload/host/host_limits.h"

namespace headrace {
namespace {

std::string cpu_name(const std::string& file) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

Machine read_machine(const std::string& root) {
  const HostLimits limits = read_host_limits(root);
  return {.cpu = cpu_name(root + "/proc/cpuinfo"), .cores = limits.cores, .memory_bytes = limits.total_bytes};
}

}  // namespace headrace
