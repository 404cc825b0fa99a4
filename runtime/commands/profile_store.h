// The kept profiles: one file with an entry for each device and driver (~/.cache/headrace/profile.json). A new version
// is written under another name and renamed, so a reader sees the old file or the new one. Owns nothing. Any thread. If
// two programs write at the same time, the later one wins.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/cost.h"

namespace headrace {

struct RateName {
  const char* name;   // in files
  const char* title;  // for people: rate_title()
  double MachineRates::*rate;
};
constexpr std::array<RateName, 11> kRateNames = {
    {{"to_device_gb_per_s", "copies to the device", &MachineRates::to_device_gb_per_s},
     {"to_host_gb_per_s", "copies to the host", &MachineRates::to_host_gb_per_s},
     {"weights_gb_per_s", "reading weights", &MachineRates::weights_gb_per_s},
     {"kv_gb_per_s", "reading KV rows", &MachineRates::kv_gb_per_s},
     {"product_tflop_per_s", "products", &MachineRates::product_tflop_per_s},
     {"attention_tflop_per_s", "prefill attention", &MachineRates::attention_tflop_per_s},
     {"queries_tflop_per_s", "attention of many queries", &MachineRates::queries_tflop_per_s},
     {"int8_product_tflop_per_s", "products in 8 bits", &MachineRates::int8_product_tflop_per_s},
     {"int8_attention_tflop_per_s", "prefill attention in 8 bits", &MachineRates::int8_attention_tflop_per_s},
     {"disk_read_gb_per_s", "disk reads", &MachineRates::disk_read_gb_per_s},
     {"disk_write_gb_per_s", "disk writes", &MachineRates::disk_write_gb_per_s}}};

// On a CPU, where device and host are one memory, copies are those within it.
std::string rate_title(const RateName& rate, bool gpu);

// The spread of a rate's rounds: fastest less slowest, as a share of the median. A few hundredths on an idle machine;
// large if other work runs.
struct RateSpread {
  const RateName* rate;
  double share = 0;
};
constexpr double kSteady = 0.25;  // a larger spread means that the machine was busy
// The largest; none: no spread is known.
std::optional<RateSpread> widest(const std::vector<RateSpread>& spread);
// No rounds are known to lie further apart than on an idle machine.
bool steady(const std::vector<RateSpread>& spread);

// The rates of one entry.
struct KeptRates {
  std::string device, driver;  // Device::name() and Device::driver()
  std::string measured;        // the time: "2026-11-21T20:15:00Z"
  MachineRates rates{};
  std::vector<RateSpread> spread{};  // of the rates that have one; older programs kept none
  std::string disk_folder{};         // that the disk was measured in
  uint64_t disk_file_system = 0;     // folder_file_system() of it; 0: not known
};

// Includes the disk's rates only if the folder of --spill, if any, is on the measured disk.
MachineRates rates_with_spill(const KeptRates& kept, const std::string& spill_folder);

// Seconds from a profile's `measured` to `now`, seconds since 1970; none: it is no time, or it lies ahead.
std::optional<int64_t> profile_age_s(const std::string& measured, int64_t now);

// $XDG_CACHE_HOME/headrace/profile.json, else ~/.cache/headrace/profile.json. Empty: neither variable is set.
std::string kept_profile_path();

struct KeptProfiles {
  std::vector<KeptRates> entries;
  std::string ignored;  // why the file is not used; empty: it is used, or does not exist
};
// Never throws: a torn file, or one that is not a profile, yields no entries and a reason.
KeptProfiles read_kept_profiles(const std::string& path);
// The same for a file that the user named, or for a single profile (headrace profile -o FILE.json). Throws
// Error(kBadInput) that names the file.
std::vector<KeptRates> read_profiles(const std::string& path);

// The entry of this device; none: not measured, or with another driver.
std::optional<KeptRates> find_rates(const std::vector<KeptRates>& entries, const std::string& device,
                                    const std::string& driver);
// The same of the kept file, for predictions: an entry of a busy machine, which an older program may have kept, is not
// used. `note`: why something is not; empty if all is.
std::optional<KeptRates> find_kept_rates(const std::string& device, const std::string& driver, std::string* note);

// Replaces the device's entry by a profile, one JSON object from profile_json(); rates that it lacks are taken over
// from the old entry. Entries of other devices stay. A torn file, or one that is not a profile, is replaced; a newer
// version, or an unreadable file, is left unchanged. Creates the folder. Throws Error(kStorage).
void keep_profile(const std::string& path, const std::string& profile_json);

}  // namespace headrace
