// headrace profile: measures this machine. The link between host and device by copy size, pinned and pageable;
// scattered pages; latency; the device's memory and kernels; the host's memory; a disk. Each figure is the median of
// several rounds by the device's clock; transferred data is compared. Thread: one, except for `interrupt`.
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
  bool quick = false;            // fewer sizes and rounds: a few seconds instead of most of a minute
  std::string disk;              // the folder whose disk is measured; empty: none
  uint64_t disk_file_bytes = 0;  // most bytes of the file there; 0: the default
  double disk_seconds = 0;       // per test; 0: the default
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
const char* profile_group_name(ProfileGroup group);             // "pinned"
const char* profile_group_title(ProfileGroup group, bool gpu);  // "pinned memory, by the size of a copy"

// One figure.
struct ProfileRow {
  ProfileGroup group = ProfileGroup::kPinned;
  std::string test;    // "to device"; "random read"
  uint64_t bytes = 0;  // of a copy, a page, a block; 0: none
  int depth = 0;       // of a disk's queue; 0: none
  double value = 0;
  std::string unit = "GB/s";
  double low = 0, high = 0;  // of the rounds; 0: only one figure
  std::string same_as{};     // the equivalent test: "nvbandwidth host_to_device_memcpy_ce"
  std::string error{};       // why there is no figure, or no reliable one
};

// For people: a CPU's copies have no device to go to.
std::string shown_test(const ProfileRow& row, bool gpu);
// And its rates may be small: the unit in which a row has digits before the point or two behind it, and the factor to
// it.
struct ShownRate {
  double factor = 1;
  std::string unit{};
};
ShownRate shown_rate(const ProfileRow& row);

struct ProfileReport {
  Machine machine;
  std::string device, driver, measured;  // measured: when, "2026-11-21T20:15:00Z"
  bool gpu = false, quick = false, interrupted = false;
  std::optional<PcieLink> pcie;
  std::vector<int> numa_nodes;     // of this process
  std::vector<std::string> notes;  // deviations, one line each
  std::vector<ProfileRow> rows;
  std::string disk, disk_how;
  uint64_t disk_file_bytes = 0, disk_file_system = 0;  // disk_file_system: folder_file_system()
  double disk_seconds = 0;                             // per test
  double seconds = 0;

  MachineRates rates() const;
  std::vector<RateSpread> spread() const;  // of each rate measured in rounds
  std::string why_not_kept() const;        // empty: later runs may be predicted by it

 private:
  using Rate = double MachineRates::*;
  // The best figure of a test for blocks or copies of at least `least_bytes`; null: none.
  const ProfileRow* best_row(ProfileGroup group, const std::string& test, uint64_t least_bytes) const;
  const ProfileRow* row_of(Rate rate) const;  // the row of a rate; null: none
};

struct ProfileHooks {
  std::function<void(const Device& device)> on_device{};
  std::function<void(ProfileGroup group)> on_group{};         // begins
  std::function<void(const ProfileReport& so_far)> on_row{};  // the last row is new
};

// Throws Error if the device cannot be opened; any other failed measurement is a note.
ProfileReport run_profile(const ProfileOptions& options, const ProfileHooks& hooks);

// "PCIe 4.0 x16", and what is wrong with it; both empty if unknown.
std::string pcie_text(const PcieMode& mode);
std::string pcie_warning(const PcieLink& link);

// The report in other formats: one JSON object; CSV, a line per row; tables for a README. Each ends in a newline.
std::string profile_json(const ProfileReport& report);
std::string profile_csv(const ProfileReport& report);
std::string profile_markdown(const ProfileReport& report);
inline constexpr const char* kProfileCsvHeading = "group,test,bytes,depth,value,unit,low,high,same_as,error\n";
inline constexpr const char* kProfileMarkdownBeginning = "# headrace profile: ";

}  // namespace headrace
