#include "offload/host/host_limits.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "cache/base.h"

namespace headrace {
namespace {

std::optional<uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;  // no such file, or "max"
  return value;
}

// "name 123" or "name: 123 kB": the number after `name`, in the file's unit.
std::optional<uint64_t> read_field(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  file.exceptions(std::ios::badbit);  // no memory for a line is not a file without the field
  try {
    for (std::string line; std::getline(file, line);) {
      if (line.compare(0, name.size(), name) != 0 || line.size() == name.size()) continue;
      const char after = line[name.size()];
      if (after != ' ' && after != ':') continue;
      std::istringstream rest(line.substr(name.size() + 1));
      uint64_t value = 0;
      if (rest >> value) return value;
    }
  } catch (const std::ios::failure&) {  // the file cannot be read
  }
  return std::nullopt;
}

// Folders of a controller that may limit this process: its group and every group above it. `controller` is empty for
// v2. In a container the group's own path may be hidden; then its root is visible.
std::vector<std::string> group_folders(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string path = "/";
  for (std::string line; std::getline(file, line);) {  // "4:cpu,cpuacct:/path", "0::/path"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (names.find(str(",", controller, ",")) != std::string::npos) path = line.substr(second + 1);
  }
  const std::string mount = root + "/sys/fs/cgroup" + (controller.empty() ? "" : str("/", controller));
  std::vector<std::string> folders;
  for (std::string at = path; !at.empty() && at != "/"; at.erase(at.rfind('/'))) folders.push_back(mount + at);
  folders.push_back(mount);
  return folders;
}

// The group's page cache does not count as used: the kernel drops it before it refuses memory.
void apply_memory_limit(uint64_t limit, const std::optional<uint64_t>& used, const std::optional<uint64_t>& cached,
                        HostLimits* limits) {
  const uint64_t held = used.value_or(0) - std::min(used.value_or(0), cached.value_or(0));
  limits->total_bytes = std::min(limits->total_bytes, limit);
  limits->available_bytes = std::min(limits->available_bytes, limit - std::min(limit, held));
}

void apply_memory_groups(const std::string& root, HostLimits* limits) {
  for (const std::string& folder : group_folders(root, "")) {
    if (const auto limit = read_number(folder + "/memory.max")) {
      apply_memory_limit(*limit, read_number(folder + "/memory.current"),
                         read_field(folder + "/memory.stat", "inactive_file"), limits);
    }
  }
  for (const std::string& folder : group_folders(root, "memory")) {
    if (const auto limit = read_number(folder + "/memory.limit_in_bytes")) {
      apply_memory_limit(*limit, read_number(folder + "/memory.usage_in_bytes"),
                         read_field(folder + "/memory.stat", "total_inactive_file"), limits);
    }
  }
}

void apply_quota(const std::optional<uint64_t>& quota, const std::optional<uint64_t>& period, int* cores) {
  if (!quota || !period || *quota == 0 || *period == 0) return;
  const uint64_t allowed = std::max<uint64_t>(1, *quota / *period + (*quota % *period != 0));
  *cores = static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(*cores), allowed));
}

void apply_core_groups(const std::string& root, int* cores) {
  for (const std::string& folder : group_folders(root, "")) {
    std::ifstream file(folder + "/cpu.max");  // "200000 100000", "max 100000"
    uint64_t quota = 0, period = 0;
    if (file >> quota >> period) apply_quota(quota, period, cores);
  }
  for (const std::string& folder : group_folders(root, "cpu")) {  // -1: no quota; an unsigned parse rejects it
    std::ifstream file(folder + "/cpu.cfs_quota_us");
    int64_t quota = 0;
    if (file >> quota && quota > 0) {
      apply_quota(static_cast<uint64_t>(quota), read_number(folder + "/cpu.cfs_period_us"), cores);
    }
  }
}

int affinity_cores() {
  for (int cpus = 1024; cpus <= (1 << 16); cpus *= 4) {  // the kernel rejects a set smaller than its own
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(cpus));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

HostLimits read_host_limits(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  if (!std::ifstream(path)) {
    const int why = errno;
    const bool files = why == EMFILE || why == ENFILE;
    throw_error(files ? ExitCode::kDoesNotFit : ExitCode::kInternal, path,
                str("cannot be opened: ", std::strerror(why)),
                files ? "Raise the limit of open files (ulimit -n)." : "mount /proc");
  }
  const auto total_kib = read_field(path, "MemTotal"), available_kib = read_field(path, "MemAvailable");
  if (!total_kib || !available_kib) {
    throw_error(ExitCode::kInternal, path, "has no MemTotal and MemAvailable", "mount /proc");
  }
  HostLimits limits{
      .total_bytes = *total_kib * kKiB, .available_bytes = *available_kib * kKiB, .cores = affinity_cores()};
  apply_memory_groups(root, &limits);
  apply_core_groups(root, &limits.cores);
  return limits;
}

void check_against(const HostLimits& limits, std::string_view flag, uint64_t bytes) {
  if (bytes <= limits.total_bytes) return;
  throw_error(ExitCode::kDoesNotFit, std::string(flag),
              str(format_bytes(bytes), " is more than this machine has: ", format_bytes(limits.total_bytes), ", ",
                  format_bytes(limits.available_bytes), " of them available"),
              str("set ", flag, " lower, or leave it out"));
}

}  // namespace headrace
