#include "runtime/engine/engine_shares.h"

#include <algorithm>
#include <filesystem>

#include "cache/base.h"
#include "offload/host/host_limits.h"

namespace headrace {
namespace {

// 0: the disk's free space is unknown; opening the spill file reports why.
uint64_t spill_bytes(const SpillOptions& spill) {
  if (spill.folder.empty() || spill.limit_bytes != 0) return spill.limit_bytes;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(spill.folder, error);
  return error ? 0 : space.available;
}

// Never divides a limit down to 0, which would mean that there is none.
uint64_t part_of(uint64_t limit, size_t count) { return limit == 0 ? 0 : std::max<uint64_t>(limit / count, 1); }

}  // namespace

std::vector<EngineOptions> engine_shares(const EngineOptions& all, const std::vector<DeviceOptions>& devices) {
  std::vector<EngineOptions> shares(std::max<size_t>(devices.size(), 1), all);
  for (size_t i = 0; i < devices.size(); ++i) {
    shares[i].device.choice = devices[i].choice;
    shares[i].device.cuda_index = devices[i].cuda_index;
  }
  const size_t count = shares.size();
  if (count == 1) return shares;
  const HostLimits limits = read_host_limits();
  check_against(limits, "--host-mem", all.device.host_mem_bytes);
  const uint64_t host = all.device.host_mem_bytes != 0 ? all.device.host_mem_bytes : limits.default_host_mem();
  const size_t threads = static_cast<size_t>(all.device.threads != 0 ? all.device.threads : limits.cores);
  const uint64_t spill = spill_bytes(all.spill);
  for (size_t i = 0; i < count; ++i) {
    EngineOptions& share = shares[i];
    share.device.host_mem_bytes = part_of(host, count);
    share.device.threads = static_cast<int>(std::max<size_t>(threads / count + (i < threads % count ? 1 : 0), 1));
    share.spill.limit_bytes = part_of(spill, count);
    share.prefix_cache.limit_bytes = part_of(all.prefix_cache.limit_bytes, count);
    if (i > 0 && !all.prefix_cache.folder.empty()) share.prefix_cache.folder += str("/device-", i + 1);
  }
  return shares;
}

}  // namespace headrace
