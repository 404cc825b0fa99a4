#include "runtime/commands/profile_store.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "cache/base.h"
#include "offload/disk/file.h"
#include "runtime/base/file_hints.h"
#include "runtime/base/input_file.h"
#include "runtime/base/json_file.h"
#include "runtime/commands/report_json.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

constexpr const char* kProgram = "headrace profile";
constexpr int kVersion = 1;
constexpr size_t kMaxBytes = 64 * kMiB;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw_error(ExitCode::kBadInput, path, what, "headrace profile writes a new one.");
}

// Reads the file; false: it does not exist.
bool read_text(const std::string& path, std::string* text) {
  if (!is_there(path)) return false;
  try {
    *text = read_small_file(path, kMaxBytes);
  } catch (const Error& error) {
    refuse(path, error.info().what);
  }
  return true;
}

KeptRates entry_of(const ordered_json& json, const std::string& path) {
  KeptRates kept{.device = json.at("device"), .driver = json.at("driver"), .measured = json.at("measured")};
  const ordered_json& rates = json.at("rates");
  kept.rates.gpu = rates.at("gpu");
  const ordered_json spread = json.value("spread", ordered_json::object());
  for (const RateName& rate : kRateNames) {
    const double value = rates.value(rate.name, 0.0);
    if (!std::isfinite(value) || value < 0) refuse(path, str("is not a profile: ", rate.name, " is ", value));
    kept.rates.*rate.rate = value;
    if (!spread.contains(rate.name)) continue;
    const double share = spread.at(rate.name);
    if (!std::isfinite(share) || share < 0)
      refuse(path, str("is not a profile: the spread of ", rate.name, " is ", share));
    kept.spread.push_back({.rate = &rate, .share = share});
  }
  const ordered_json disk = json.value("disk", ordered_json::object());
  kept.disk_folder = disk.value("folder", "");
  kept.disk_file_system = disk.value("file_system", uint64_t{0});
  return kept;
}

// The profiles in a file, as they are stored.
std::vector<ordered_json> profiles_in(const std::string& text, const std::string& path) {
  const ordered_json json = parse_ordered_json(text, path);
  if (!json.is_object() || json.value("program", "") != kProgram) refuse(path, "is not a profile");
  if (json.value("version", 0) != kVersion) {
    refuse(path, str("has version ", json.value("version", 0), ", this program reads ", kVersion));
  }
  if (!json.contains("profiles")) return {json};
  return json.at("profiles").get<std::vector<ordered_json>>();
}

std::vector<KeptRates> parse_profiles(const std::string& text, const std::string& path) {
  try {
    std::vector<KeptRates> entries;
    for (const ordered_json& json : profiles_in(text, path)) entries.push_back(entry_of(json, path));
    return entries;
  } catch (const nlohmann::json::exception& error) {
    refuse(path, str("is not a profile: ", error.what()));
  }
}

[[noreturn]] void cannot_write(const std::string& path, const std::string& why) {
  throw_error(ExitCode::kStorage, path, str("cannot be written: ", why), "The profile is not kept.");
}

// The file is also on the disk when this returns.
void write_whole(const std::string& path, const std::string& text) {
  try {
    replace_file(path, unused_name(path), text);
    sync_folder(std::filesystem::path(path).parent_path());
  } catch (const Error& error) {
    cannot_write(path, error.info().what);
  }
}

// The profiles to keep when the file is rewritten.
std::vector<ordered_json> profiles_to_keep(const std::string& path) {
  constexpr const char* kNotKept = "The profile is not kept.";
  std::string text;
  try {
    if (!read_text(path, &text)) return {};
  } catch (const Error& error) {
    throw_error(ExitCode::kStorage, path, error.info().what + "; it is unchanged", kNotKept);
  }
  try {
    const ordered_json json = parse_ordered_json(text, path);
    const int version = json.is_object() && json.value("program", "") == kProgram ? json.value("version", 0) : 0;
    if (version > kVersion) {
      throw_error(ExitCode::kStorage, path, str("has version ", version, " of a newer program; it is unchanged"),
                  kNotKept);
    }
    std::vector<ordered_json> profiles = profiles_in(text, path);
    for (const ordered_json& one : profiles) entry_of(one, path);
    return profiles;
  } catch (const nlohmann::json::exception&) {  // foreign or torn: its content is useless
    return {};
  } catch (const Error& error) {
    if (error.code() == ExitCode::kStorage) throw;
    return {};
  }
}

bool has_disk(const ordered_json& profile) {
  const ordered_json& rates = profile.at("rates");
  return rates.value("disk_read_gb_per_s", 0.0) > 0 || rates.value("disk_write_gb_per_s", 0.0) > 0;
}

// Keeps old values for what was not measured again: rates, and the rows of whole groups. A disk's rows belong together.
void complete(ordered_json* profile, const ordered_json& old) {
  const bool keeps_disk = has_disk(old) && !has_disk(*profile);
  for (const RateName& rate : kRateNames) {
    const double before = old.at("rates").value(rate.name, 0.0);
    const bool of_disk = std::string_view(rate.name).starts_with("disk_");
    const bool missing = of_disk ? keeps_disk : (*profile)["rates"].value(rate.name, 0.0) == 0;
    if (!missing || before <= 0) continue;
    (*profile)["rates"][rate.name] = before;
    if (old.contains("spread") && old.at("spread").contains(rate.name))
      (*profile)["spread"][rate.name] = old.at("spread").at(rate.name);
  }
  if (keeps_disk && old.contains("disk")) {
    (*profile)["disk"] = old.at("disk");
    if (!old.at("disk").contains("measured")) (*profile)["disk"]["measured"] = old.at("measured");
  }
  const ordered_json none = ordered_json::array();
  std::set<std::string> groups;
  for (const ordered_json& row : profile->value("rows", none)) {
    if (row.is_object()) groups.insert(row.value("group", ""));
  }
  if (keeps_disk && groups.erase("disk") > 0) {  // rows of a disk without any figure
    auto& rows = (*profile)["rows"].get_ref<ordered_json::array_t&>();
    std::erase_if(rows, [](const ordered_json& row) { return row.is_object() && row.value("group", "") == "disk"; });
  }
  for (const ordered_json& row : old.value("rows", none)) {
    if (row.is_object() && !groups.contains(row.value("group", ""))) (*profile)["rows"].push_back(row);
  }
}

}  // namespace

MachineRates rates_with_spill(const KeptRates& kept, const std::string& spill_folder) {
  MachineRates rates = kept.rates;
  if (spill_folder.empty()) return rates;
  const uint64_t there = folder_file_system(spill_folder);
  if (there == 0 || there != kept.disk_file_system) rates.disk_read_gb_per_s = rates.disk_write_gb_per_s = 0;
  return rates;
}

std::optional<RateSpread> widest(const std::vector<RateSpread>& spread) {
  const auto less = [](const RateSpread& a, const RateSpread& b) { return a.share < b.share; };
  const auto at = std::max_element(spread.begin(), spread.end(), less);
  return at == spread.end() ? std::nullopt : std::optional(*at);
}

bool steady(const std::vector<RateSpread>& spread) {
  const std::optional<RateSpread> worst = widest(spread);
  return !worst || worst->share <= kSteady;
}

std::string rate_title(const RateName& rate, bool gpu) {
  if (gpu) return rate.title;
  if (rate.rate == &MachineRates::to_device_gb_per_s) return "copies in";
  return rate.rate == &MachineRates::to_host_gb_per_s ? "copies out" : rate.title;
}

std::optional<int64_t> profile_age_s(const std::string& measured, int64_t now) {
  std::tm utc{};
  const char* const end = ::strptime(measured.c_str(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  if (end == nullptr || *end != '\0') return std::nullopt;
  const int64_t age = now - static_cast<int64_t>(::timegm(&utc));
  return age < 0 ? std::nullopt : std::optional(age);
}

std::string kept_profile_path() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (cache.starts_with('/')) return cache + "/headrace/profile.json";  // the XDG standard ignores a relative path
  return home.empty() ? "" : home + "/.cache/headrace/profile.json";
}

KeptProfiles read_kept_profiles(const std::string& path) {
  KeptProfiles kept;
  try {
    std::string text;
    if (!path.empty() && read_text(path, &text)) kept.entries = parse_profiles(text, path);
  } catch (const Error& error) {
    kept.ignored = first_line(error);
  }
  return kept;
}

std::vector<KeptRates> read_profiles(const std::string& path) {
  std::string text;
  if (!read_text(path, &text)) refuse(path, str("cannot be read: ", std::strerror(ENOENT)));
  return parse_profiles(text, path);
}

std::optional<KeptRates> find_rates(const std::vector<KeptRates>& entries, const std::string& device,
                                    const std::string& driver) {
  for (const KeptRates& entry : entries) {
    if (entry.device == device && entry.driver == driver) return entry;
  }
  return std::nullopt;
}

std::optional<KeptRates> find_kept_rates(const std::string& device, const std::string& driver, std::string* note) {
  const KeptProfiles kept = read_kept_profiles(kept_profile_path());
  *note = kept.ignored;
  std::optional<KeptRates> found = find_rates(kept.entries, device, driver);
  if (!found || steady(found->spread)) return found;
  *note =
      "the kept profile is not used: the machine was busy when it was measured. Measure again while it is idle: "
      "headrace profile";
  return std::nullopt;
}

void keep_profile(const std::string& path, const std::string& profile_json) {
  ordered_json profile = ordered_json::parse(profile_json);
  ordered_json file = {{"program", kProgram}, {"version", kVersion}, {"profiles", ordered_json::array()}};
  for (ordered_json& old : profiles_to_keep(path)) {
    if (old.at("device") == profile.at("device") && old.at("driver") == profile.at("driver")) {
      complete(&profile, old);
    } else {
      file["profiles"].push_back(std::move(old));
    }
  }
  file["profiles"].push_back(std::move(profile));
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) cannot_write(path, error.message());
  write_whole(path, report_text(file));
}

}  // namespace headrace
