// Reads a trace's file as a viewer does. An invalid trace fails the test. Header only. Thread: one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace headrace::testing {

struct ReadSlice {
  std::string track, name, link;  // link and the following fields: only of copies
  uint64_t bytes = 0;
  double gb_per_s = 0;
  double begin_us = 0, us = 0;
  double end_us() const { return begin_us + us; }
};

struct ReadTrace {
  std::string process, notes;
  std::vector<ReadSlice> slices;  // by track, then by time
  nlohmann::json other;

  // Slices whose name has this prefix: "layer" finds "layer 7".
  int64_t count(const std::string& name) const {
    return std::count_if(slices.begin(), slices.end(), [&](const ReadSlice& s) { return s.name.starts_with(name); });
  }
  ReadSlice one(const std::string& name) const {
    const auto found = std::find_if(slices.begin(), slices.end(), [&](const ReadSlice& s) { return s.name == name; });
    if (found != slices.end()) return *found;
    ADD_FAILURE() << "no slice is called " << name;
    return {};
  }
  std::vector<ReadSlice> on(const std::string& track) const {
    std::vector<ReadSlice> found;
    std::copy_if(slices.begin(), slices.end(), std::back_inserter(found),
                 [&](const ReadSlice& s) { return s.track == track; });
    return found;
  }
};

// A viewer's requirement for one track: each slice ends before the next begins, or contains it.
inline void expect_nested(const std::vector<ReadSlice>& slices) {
  constexpr double kRoundingUs = 1e-6;  // of doubles: the file has whole nanoseconds
  std::vector<double> open;
  double last = -1e300;
  for (const ReadSlice& slice : slices) {
    EXPECT_GE(slice.us, 0) << slice.name;
    EXPECT_GE(slice.begin_us, last) << slice.name;
    last = slice.begin_us;
    while (!open.empty() && open.back() <= slice.begin_us + kRoundingUs) open.pop_back();
    const double within = open.empty() ? slice.end_us() : open.back();
    EXPECT_LE(slice.end_us(), within + kRoundingUs) << slice.name;
    open.push_back(slice.end_us());
  }
}

inline ReadTrace read_trace(const std::string& text) {
  const nlohmann::json file = nlohmann::json::parse(text);
  ReadTrace read;
  read.other = file.value("otherData", nlohmann::json::object());
  std::map<int, std::string> tracks;
  std::map<int, std::vector<ReadSlice>> by_track;
  for (const nlohmann::json& event : file.at("traceEvents")) {
    const std::string phase = event.at("ph"), name = event.at("name");
    const int tid = event.at("tid");
    EXPECT_EQ(event.at("pid"), 1);
    if (name == "thread_name") tracks[tid] = event.at("args").at("name");
    if (name == "process_name") read.process = event.at("args").at("name");
    if (phase == "i") read.notes += name + "\n";
    if (phase != "X") continue;
    const nlohmann::json& args = event.at("args");
    by_track[tid].push_back({"", name, args.value("link", ""), args.value("bytes", uint64_t{0}),
                             args.value("GB/s", 0.0), event.at("ts"), event.at("dur")});
  }
  for (auto& [tid, slices] : by_track) {
    EXPECT_TRUE(tracks.contains(tid)) << "track " << tid << " has no name";
    expect_nested(slices);
    for (ReadSlice& slice : slices) {
      slice.track = tracks[tid];
      read.slices.push_back(std::move(slice));
    }
  }
  EXPECT_FALSE(read.process.empty());
  return read;
}

}  // namespace headrace::testing
