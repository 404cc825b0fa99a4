// The file of a trace: where it may be written, what it says, and how slices are laid out for a viewer.
#include "offload/device/trace_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/base.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trace_reader.h"

namespace headrace {
namespace {

using testing::ReadTrace;

TimedSlice slice(TraceTrack track, int64_t begin, int64_t end, const char* name = "slice") {
  return {.name = name, .track = track, .link = Link::kHostToDevice, .bytes = 0, .begin_ns = begin, .end_ns = end};
}

Error refusal(const std::string& path) {
  try {
    TraceFile file(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.info().where, path);
    return error;
  }
  ADD_FAILURE() << "not refused";
  return Error({});
}

TEST(TraceLanes, WhatIsInsideStaysOnOneLane) {
  const TraceTrack compute = TraceTrack::kCompute;
  std::vector<TimedSlice> slices = {slice(compute, 0, 10000), slice(compute, 0, 4000), slice(compute, 4000, 10000),
                                    slice(compute, 10000, 20000)};
  EXPECT_EQ(trace_lanes(&slices), (std::vector<int>{0, 0, 0, 0}));
}

TEST(TraceLanes, ClocksMayErr) {
  const TraceTrack compute = TraceTrack::kCompute;
  std::vector<TimedSlice> slices = {slice(compute, 500, 10000, "outer"), slice(compute, 200, 4000, "inner"),
                                    slice(compute, 5000, 10400, "last")};
  EXPECT_EQ(trace_lanes(&slices), (std::vector<int>{0, 0, 0}));
  EXPECT_STREQ(slices[0].name.text, "outer");
  EXPECT_EQ(slices[1].begin_ns, 500);
  EXPECT_EQ(slices[2].end_ns, 10000);
}

TEST(TraceLanes, WhatOverlapsHasItsOwn) {
  const TraceTrack in = TraceTrack::kHostToDevice;
  std::vector<TimedSlice> slices = {slice(in, 0, 10000), slice(in, 20000, 30000), slice(in, 5000, 25000),
                                    slice(in, 6000, 7000)};
  EXPECT_EQ(trace_lanes(&slices), (std::vector<int>{0, 1, 2, 0}));
  EXPECT_EQ(slices[1].begin_ns, 5000);  // now by time
  std::vector<TimedSlice> crossing = {slice(TraceTrack::kCompute, 0, 10000), slice(TraceTrack::kCompute, 5000, 15000)};
  EXPECT_EQ(trace_lanes(&crossing), (std::vector<int>{0, 1}));
  std::vector<TimedSlice> none;
  EXPECT_TRUE(trace_lanes(&none).empty());
}

TEST(TraceFile, IsAnEmptyTraceAtOnce) {
  const TemporaryFolder folder;
  const TraceFile file(folder / "t.json");
  const nlohmann::json empty = nlohmann::json::parse(folder.read("t.json"));
  EXPECT_TRUE(empty["traceEvents"].empty());
}

TEST(TraceFile, ReplacesATraceAndNothingElse) {
  const TemporaryFolder folder;
  const std::string mine = folder.write("model.gguf", "GGUF, and a long way to download it again");
  EXPECT_EQ(refusal(mine).code(), ExitCode::kBadInput);
  EXPECT_EQ(folder.read("model.gguf"), "GGUF, and a long way to download it again");
  EXPECT_EQ(refusal(folder.write("short", "{")).code(), ExitCode::kBadInput);
  folder.write("empty", "");
  TraceFile(folder / "empty").write({slice(TraceTrack::kCompute, 0, 1000000)}, {}, "device");
  TraceFile(folder / "empty").write({slice(TraceTrack::kCompute, 5000, 8000)}, {}, "device");  // shorter
  EXPECT_EQ(testing::read_trace(folder.read("empty")).one("slice").us, 3);
}

TEST(TraceFile, SaysWhereItCannotBe) {
  const TemporaryFolder folder;
  const Error gone = refusal(folder / "gone/t.json"), is_folder = refusal(folder.path());
  EXPECT_EQ(gone.code(), ExitCode::kStorage);
  EXPECT_NE(std::string(gone.what()).find("No such file"), std::string::npos) << gone.what();
  EXPECT_EQ(is_folder.code(), ExitCode::kStorage);
  EXPECT_NE(std::string(is_folder.what()).find("directory"), std::string::npos) << is_folder.what();
}

TEST(TraceFile, SaysThatTheDiskIsFull) {
  TraceFile file("/dev/full");
  try {
    file.write({slice(TraceTrack::kCompute, 0, 1000)}, {}, "device");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kStorage);
    EXPECT_NE(std::string(error.what()).find("/dev/full: cannot be written: No space left"), std::string::npos)
        << error.what();
  }
}

TEST(TraceFile, AnyNameIsAName) {
  const TemporaryFolder folder;
  TraceFile(folder / "t.json").write({slice(TraceTrack::kHost, -1500, 1000, "a\"b\\c\n\xff.txt")}, {}, "GPU \"0\"");
  const ReadTrace read = testing::read_trace(folder.read("t.json"));
  EXPECT_EQ(read.process, "headrace, GPU \"0\"");
  ASSERT_EQ(read.slices.size(), 1u);
  EXPECT_EQ(read.slices[0].name, "a\"b\\c\n\xef\xbf\xbd.txt");
  EXPECT_EQ(read.slices[0].begin_us, -1.5);
  EXPECT_EQ(read.slices[0].us, 2.5);
}

}  // namespace
}  // namespace headrace
