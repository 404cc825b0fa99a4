#include "runtime/profile_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace headrace {
namespace {

using nlohmann::ordered_json;

constexpr const char* kProgram = "headrace profile";
constexpr int kVersion = 1;
constexpr size_t kMostBytes = 64 * kMiB;

struct RateName {
  const char* name;
  double MachineRates::*rate;
};
constexpr RateName kRates[] = {{"to_device_gb_per_s", &MachineRates::to_device_gb_per_s},
                               {"to_host_gb_per_s", &MachineRates::to_host_gb_per_s},
                               {"weights_gb_per_s", &MachineRates::weights_gb_per_s},
                               {"kv_gb_per_s", &MachineRates::kv_gb_per_s},
                               {"product_tflop_per_s", &MachineRates::product_tflop_per_s},
                               {"attention_tflop_per_s", &MachineRates::attention_tflop_per_s},
                               {"queries_tflop_per_s", &MachineRates::queries_tflop_per_s},
                               {"disk_read_gb_per_s", &MachineRates::disk_read_gb_per_s},
                               {"disk_write_gb_per_s", &MachineRates::disk_write_gb_per_s}};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw_error(ExitCode::kBadInput, path, what, "headrace profile writes a new one.");
}

// The file's content; false: there is none.
bool read_text(const std::string& path, std::string* text) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) return false;
  if (error) refuse(path, str("cannot be read: ", error.message()));
  if (size > kMostBytes) refuse(path, str("is no profile: ", format_bytes(size), " are too many"));
  std::ifstream file(path, std::ios::binary);
  text->assign(std::istreambuf_iterator<char>(file), {});
  if (!file) refuse(path, str("cannot be read: ", std::strerror(errno)));
  return true;
}

KeptRates entry_of(const ordered_json& json, const std::string& path) {
  KeptRates kept{.device = json.at("device"), .driver = json.at("driver"), .measured = json.at("measured")};
  const ordered_json& rates = json.at("rates");
  kept.rates.gpu = rates.at("gpu");
  for (const RateName& rate : kRates) {
    const double value = rates.value(rate.name, 0.0);
    if (!std::isfinite(value) || value < 0) refuse(path, str("is no profile: ", rate.name, " is ", value));
    kept.rates.*rate.rate = value;
  }
  return kept;
}

// The profiles in a file, each as it stands there.
std::vector<ordered_json> profiles_in(const std::string& text, const std::string& path) {
  const ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) refuse(path, "is no JSON: torn, or something else");
  if (!json.is_object() || json.value("program", "") != kProgram) refuse(path, "is no profile");
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
    refuse(path, str("is no profile: ", error.what()));
  }
}

[[noreturn]] void cannot_write(const std::string& path, const std::string& why) {
  throw_error(ExitCode::kStorage, path, str("cannot be written: ", why), "The profile is not kept.");
}

void write_whole(const std::string& path, const std::string& text) {
  const std::string fresh = str(path, ".", ::getpid(), ".new");
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  const int wrong = errno;
  if (!file) {
    std::remove(fresh.c_str());
    cannot_write(path, std::strerror(wrong));
  }
  if (std::rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(fresh.c_str());
    cannot_write(path, std::strerror(error));
  }
}

}  // namespace

std::string kept_profile_path() {
  const char* const home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? "" : str(home, "/.cache/headrace/profile.json");
}

KeptProfiles read_kept_profiles(const std::string& path) {
  KeptProfiles kept;
  try {
    std::string text;
    if (!path.empty() && read_text(path, &text)) kept.entries = parse_profiles(text, path);
  } catch (const Error& error) {
    kept.ignored = std::string(error.what()).substr(0, std::string(error.what()).find('\n'));
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

std::string rates_json(const MachineRates& rates) {
  ordered_json json = {{"gpu", rates.gpu}};
  for (const RateName& rate : kRates) json[rate.name] = std::round(rates.*rate.rate * 1e4) / 1e4;
  return json.dump();
}

void keep_profile(const std::string& path, const std::string& profile_json) {
  const ordered_json profile = ordered_json::parse(profile_json);
  ordered_json file = {{"program", kProgram}, {"version", kVersion}, {"profiles", ordered_json::array()}};
  std::string text;
  try {
    if (read_text(path, &text)) {
      for (const ordered_json& old : profiles_in(text, path)) {
        const KeptRates entry = entry_of(old, path);
        if (entry.device != profile.at("device") || entry.driver != profile.at("driver"))
          file["profiles"].push_back(old);
      }
    }
  } catch (const std::exception&) {  // not one of ours, or torn: what it held is of no use to anybody
    file["profiles"] = ordered_json::array();
  }
  file["profiles"].push_back(profile);
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) cannot_write(path, error.message());
  write_whole(path, file.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace headrace
