// Profiles that are kept: by device and driver, whole or not at all, and never a reason to fail.
#include "runtime/commands/profile_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "offload/disk/file.h"
#include "runtime/commands/report_json.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;

std::string profile(const std::string& device, const std::string& driver, double to_device) {
  const MachineRates rates{.gpu = true, .to_device_gb_per_s = to_device, .disk_read_gb_per_s = 3};
  return json({{"program", "headrace profile"},
               {"version", 1},
               {"device", device},
               {"driver", driver},
               {"measured", "2026-11-21T20:15:00Z"},
               {"rates", rates_json(rates)},
               {"rows", json::array({1, 2})}})
      .dump();
}

class ProfileStore : public ::testing::Test {
 protected:
  double kept(const std::string& device, const std::string& driver) {
    const KeptProfiles all = read_kept_profiles(path_);
    EXPECT_EQ(all.ignored, "");
    const auto found = find_rates(all.entries, device, driver);
    return found ? found->rates.to_device_gb_per_s : 0;
  }
  TemporaryFolder folder_;
  const std::string path_ = folder_ / "deep/er/profile.json";
};

TEST_F(ProfileStore, IsInTheUsersCacheFolder) {
  const ScopedVariable home("HOME", "/home/one"), cache("XDG_CACHE_HOME", "/fast/cache");
  EXPECT_EQ(kept_profile_path(), "/fast/cache/headrace/profile.json");
  for (const char* unusable : {"", "relative"}) {
    const ScopedVariable none("XDG_CACHE_HOME", unusable);
    EXPECT_EQ(kept_profile_path(), "/home/one/.cache/headrace/profile.json");
    const ScopedVariable homeless("HOME", "");
    EXPECT_EQ(kept_profile_path(), "");
  }
}

TEST_F(ProfileStore, KeepsOneForEachDeviceAndDriver) {
  EXPECT_TRUE(read_kept_profiles(path_).entries.empty());
  EXPECT_EQ(read_kept_profiles(path_).ignored, "");  // none is no fault
  keep_profile(path_, profile("A", "1", 10));
  keep_profile(path_, profile("B", "1", 20));
  keep_profile(path_, profile("A", "2", 30));
  keep_profile(path_, profile("A", "1", 40));  // in the place of the first
  EXPECT_EQ(kept("A", "1"), 40);
  EXPECT_EQ(kept("B", "1"), 20);
  EXPECT_EQ(kept("A", "2"), 30);
  EXPECT_EQ(kept("A", "3"), 0);
  EXPECT_EQ(read_kept_profiles(path_).entries.size(), 3u);
  EXPECT_EQ(read_kept_profiles(path_).entries[0].rates.disk_read_gb_per_s, 3);
  // The rest of an entry stays as it was, and nothing else is in the folder.
  EXPECT_EQ(json::parse(folder_.read("deep/er/profile.json"))["profiles"][0]["rows"], json::array({1, 2}));
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_ / "deep/er")) ++files;
  EXPECT_EQ(files, 1);
}

TEST_F(ProfileStore, WhatIsTornOrForeignIsIgnoredAndReplaced) {
  keep_profile(path_, profile("A", "1", 10));
  const std::string whole = folder_.read("deep/er/profile.json");
  for (const std::string& text :
       {whole.substr(0, whole.size() / 2), std::string(), std::string("[]"), std::string("{\"program\": 7}"),
        std::string("{\"program\": \"headrace profile\", \"version\": 1, \"profiles\": 3}"),
        std::string("{\"program\": \"headrace profile\", \"version\": 1, \"profiles\": [{\"device\": \"A\"}]}"),
        std::string(1000, '\0')}) {
    folder_.write("deep/er/profile.json", text);
    const KeptProfiles read = read_kept_profiles(path_);
    EXPECT_TRUE(read.entries.empty()) << text;
    EXPECT_NE(read.ignored.find(path_), std::string::npos) << text << read.ignored;
    EXPECT_THROW(read_profiles(path_), Error) << text;
    keep_profile(path_, profile("C", "1", 5));
    EXPECT_EQ(kept("C", "1"), 5) << text;
  }
}

// A run without --disk, or one that measured less, takes nothing away.
TEST_F(ProfileStore, WhatWasNotMeasuredAnewStays) {
  json full = json::parse(profile("A", "1", 10));
  full["rates"]["disk_write_gb_per_s"] = 2;
  full["disk"] = {{"folder", "/data"}, {"file_system", 77}};
  full["rows"] = {{{"group", "pinned"}, {"value", 10}}, {{"group", "disk"}, {"value", 3}}};
  keep_profile(path_, full.dump());
  json quick = json::parse(profile("A", "1", 12));
  quick["measured"] = "2026-11-22T08:00:00Z";
  quick["rates"]["disk_read_gb_per_s"] = 0;
  quick["rows"] = {{{"group", "pinned"}, {"value", 12}}, {{"group", "disk"}, {"error", "full"}}};
  quick["disk"] = {{"folder", "/full"}, {"file_system", 78}};
  for (int run = 0; run < 2; ++run) {
    keep_profile(path_, quick.dump());
    const KeptRates kept = *find_rates(read_kept_profiles(path_).entries, "A", "1");
    EXPECT_EQ(kept.rates.to_device_gb_per_s, 12);
    EXPECT_EQ(kept.rates.disk_read_gb_per_s, 3);
    EXPECT_EQ(kept.rates.disk_write_gb_per_s, 2);
    EXPECT_EQ(kept.disk_folder, "/data");
    EXPECT_EQ(kept.disk_file_system, 77u);
    const json entry = json::parse(folder_.read("deep/er/profile.json"))["profiles"][0];
    EXPECT_EQ(entry["disk"]["measured"], full["measured"]);
    EXPECT_EQ(entry["measured"], quick["measured"]);
    EXPECT_EQ(entry["rows"], json({{{"group", "pinned"}, {"value", 12}}, {{"group", "disk"}, {"value", 3}}}));
  }
  json other = quick;  // another disk: nothing of the first is left
  other["rates"]["disk_read_gb_per_s"] = 5;
  keep_profile(path_, other.dump());
  const KeptRates kept = *find_rates(read_kept_profiles(path_).entries, "A", "1");
  EXPECT_EQ(kept.rates.disk_read_gb_per_s, 5);
  EXPECT_EQ(kept.rates.disk_write_gb_per_s, 0);
  EXPECT_EQ(kept.disk_file_system, 78u);
}

// Of each rate, with the rate that it is of; files of older programs have none.
TEST_F(ProfileStore, KeepsHowFarRepeatsLieApart) {
  const auto entry = [&] { return *find_rates(read_kept_profiles(path_).entries, "A", "1"); };
  const auto spread = [&] {
    const KeptRates kept = entry();
    json all = json::object();
    for (const RateSpread& one : kept.spread) all[one.rate->name] = one.share;
    return all;
  };
  json busy = json::parse(profile("A", "1", 10));
  keep_profile(path_, busy.dump());
  EXPECT_EQ(spread(), json::object());
  EXPECT_FALSE(widest({}));
  busy["spread"] = {{"to_device_gb_per_s", 0.4}, {"disk_read_gb_per_s", 0.1}, {"a rate of later", 3}};
  keep_profile(path_, busy.dump());
  const std::vector<RateSpread> both = entry().spread;
  EXPECT_EQ(spread(), json({{"to_device_gb_per_s", 0.4}, {"disk_read_gb_per_s", 0.1}}));
  EXPECT_EQ(std::string(widest(both)->rate->title), "copies to the device");
  json idle = busy;  // without a disk: its rate and what is known of it stay
  idle["rates"]["disk_read_gb_per_s"] = 0;
  idle["spread"] = {{"to_device_gb_per_s", 0.02}};
  keep_profile(path_, idle.dump());
  EXPECT_EQ(spread(), json({{"to_device_gb_per_s", 0.02}, {"disk_read_gb_per_s", 0.1}}));
  idle["spread"]["to_device_gb_per_s"] = -1;
  const KeptProfiles bad = read_kept_profiles(folder_.write("bad.json", idle.dump()));
  EXPECT_NE(bad.ignored.find("the spread of to_device_gb_per_s is -1"), std::string::npos) << bad.ignored;
}

TEST(ProfileAge, IsByTheClockThatIsGiven) {
  EXPECT_EQ(profile_age_s("1970-01-02T00:00:01Z", 86400 + 61), 60);
  EXPECT_EQ(profile_age_s("2026-11-21T20:00:00Z", 1795291200), 0);
  for (const char* measured :
       {"2026-11-21T20:00:01Z", "", "yesterday", "2026-11-21T20:00:00", "2026-11-21T20:00:00Z "}) {
    EXPECT_FALSE(profile_age_s(measured, 1795291200)) << measured;
  }
}

TEST_F(ProfileStore, TheDisksSpeedIsOfItsFileSystem) {
  KeptRates kept{.device = "A", .driver = "1", .measured = "", .rates = {.disk_read_gb_per_s = 3}};
  EXPECT_EQ(rates_with_spill(kept, "").disk_read_gb_per_s, 3);
  EXPECT_EQ(rates_with_spill(kept, folder_.path()).disk_read_gb_per_s, 0);  // nobody knows where it was measured
  kept.disk_file_system = folder_file_system(folder_.path());
  EXPECT_NE(kept.disk_file_system, 0u);
  EXPECT_EQ(rates_with_spill(kept, folder_.path()).disk_read_gb_per_s, 3);
  EXPECT_EQ(rates_with_spill(kept, "/proc").disk_read_gb_per_s, 0);
  EXPECT_EQ(rates_with_spill(kept, folder_ / "gone").disk_read_gb_per_s, 0);
  EXPECT_EQ(folder_file_system(folder_ / "gone"), 0u);
}

void expect_left_alone(const std::string& path) {
  try {
    keep_profile(path, profile("A", "1", 1));
    ADD_FAILURE() << path;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kStorage);
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("it is unchanged\n"), std::string::npos) << error.what();
  }
}

TEST_F(ProfileStore, ANewerFileAndOneThatCannotBeReadAreLeftAlone) {
  const std::string newer = "{\"program\": \"headrace profile\", \"version\": 2, \"profiles\": []}";
  keep_profile(path_, profile("A", "1", 10));
  folder_.write("deep/er/profile.json", newer);
  EXPECT_NE(read_kept_profiles(path_).ignored.find("has version 2"), std::string::npos);
  EXPECT_THROW(read_profiles(path_), Error);
  expect_left_alone(path_);
  EXPECT_EQ(folder_.read("deep/er/profile.json"), newer);
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);  // as good as a file of another's: a test may run as root, who reads all
  expect_left_alone(path_);
  EXPECT_TRUE(std::filesystem::is_directory(path_));
}

TEST_F(ProfileStore, RatesThatAreNoneAreRefused) {
  std::string text = profile("A", "1", 10);
  text.replace(text.find("10.0"), 4, "-1.0");
  folder_.write("deep/er/profile.json", text);
  EXPECT_NE(read_kept_profiles(path_).ignored.find("to_device_gb_per_s is -1"), std::string::npos);
}

TEST_F(ProfileStore, APlaceThatCannotBeWrittenIsAStorageError) {
  folder_.write("file", "x");
  try {
    keep_profile(folder_ / "file/profile.json", profile("A", "1", 1));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kStorage);
  }
  EXPECT_EQ(folder_.read("file"), "x");
}

}  // namespace
}  // namespace headrace
