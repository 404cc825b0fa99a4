// headrace profile: what this machine moves and computes a second. The link between host and device by the size of a
// copy, pinned and not; pages that lie apart; latency; the device's memory and its kernels; the host's memory; a disk.
// Each figure is the median of several rounds of the device's own clock; what is moved is compared. Thread: one, but
// for `interrupt`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cache/cost.h"
#include "offload/device/device.h"
#include "offload/host/machine.h"
#include "offload/host/pcie.h"
#include "runtime/commands/profile_store.h"

namespace headrace {

struct ProfileOptions {
  DeviceOptions device;
  bool quick = false;            // fewer sizes and rounds: some seconds in the place of most of a minute
  std::string disk;              // a folder to measure the disk of; empty: none is measured
  uint64_t disk_file_bytes = 0;  // of the file there, at most; 0: the usual
  double disk_seconds = 0;       // of each of its tests; 0: the usual
  const std::atomic<bool>* interrupt = nullptr;
};

enum class ProfileGroup : uint8_t {
  kPinned,
  kPageable,
  kScattered,
  kLatency,
  kDeviceMemory,
  kCompute,
  kHostMemory,
  kDisk
};
constexpr int kProfileGroups = 8;
const char* profile_group_name(ProfileGroup group);   // "pinned"
const char* profile_group_title(ProfileGroup group);  // "pinned memory, by the size of a copy"

// One figure.
struct ProfileRow {
  ProfileGroup group = ProfileGroup::kPinned;
  std::string test;    // "to device"; "random read"
  uint64_t bytes = 0;  // of a copy, a page, a block; 0: it has none
  int depth = 0;       // of a disk's queue; 0: it has none
  double value = 0;
  std::string unit = "GB/s";
  double low = 0, high = 0;  // of the rounds; 0: there was one figure
  std::string same_as{};     // the same test elsewhere: "nvbandwidth host_to_device_memcpy_ce"
  std::string error{};       // why there is no figure, or none to be trusted
};

struct ProfileReport {
  Machine machine;
  std::string device, driver, measured;  // measured: when, "2026-11-21T20:15:00Z"
  bool gpu = false, quick = false, interrupted = false;
  std::optional<PcieLink> pcie;
  std::vector<int> numa_nodes;     // of this process
  std::vector<std::string> notes;  // what was not as it should be, a line each
  std::vector<ProfileRow> rows;
  std::string disk, disk_how;
  uint64_t disk_file_bytes = 0, disk_file_system = 0;  // the latter as folder_file_system()
  double disk_seconds = 0;                             // of each of its tests
  double seconds = 0;

  MachineRates rates() const;
  std::vector<RateSpread> spread() const;  // of each rate that was measured in rounds
  // The best figure of a test, of blocks or copies of at least so many bytes; 0: none.
  double best(ProfileGroup group, const std::string& test, uint64_t least_bytes = 0) const;

 private:
  using Rate = double MachineRates::*;
  const ProfileRow* best_row(ProfileGroup group, const std::string& test, uint64_t least_bytes) const;
  const ProfileRow* row_of(Rate rate) const;  // that it is read from; null: none
};

struct ProfileHooks {
  std::function<void(const Device& device)> on_device{};
  std::function<void(ProfileGroup group)> on_group{};         // begins
  std::function<void(const ProfileReport& so_far)> on_row{};  // the last of its rows is new
};

// Throws Error for a device that cannot be opened; what else cannot be measured is a note, and the rest is.
ProfileReport run_profile(const ProfileOptions& options, const ProfileHooks& hooks);

// "PCIe 4.0 x16", and what is wrong with it; both empty where nothing is known.
std::string pcie_text(const PcieMode& mode);
std::string pcie_warning(const PcieLink& link);

// The report in other forms: one JSON object; a line a row with a head; tables for a README. Each ends in a newline.
std::string profile_json(const ProfileReport& report);
std::string profile_csv(const ProfileReport& report);
std::string profile_markdown(const ProfileReport& report);
inline constexpr const char* kProfileCsvHeading = "group,test,bytes,depth,value,unit,low,high,same_as,error\n";
inline constexpr const char* kProfileMarkdownBeginning = "# headrace profile: ";

}  // namespace headrace
