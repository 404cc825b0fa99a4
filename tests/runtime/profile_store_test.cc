// Profiles that are kept: by device and driver, whole or not at all, and never a reason to fail.
#include "runtime/profile_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

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
               {"rates", json::parse(rates_json(rates))},
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
        std::string("{\"program\": \"headrace profile\", \"version\": 2, \"profiles\": []}"),
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
