// What streams and spans put into a trace, on either backend: the file is read back as a viewer would.
#include "offload/device/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "offload/device/graph.h"
#include "offload/host/clock.h"
#include "tests/offload/device/backend_test.h"
#include "tests/offload/device/gate.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trace_reader.h"

namespace headrace {
namespace {

using std::chrono::milliseconds;
using testing::ReadSlice;
using testing::ReadTrace;

class Traces : public BackendTest {
 protected:
  void SetUp() override {
    copy_.reset();
    compute_.reset();
    DeviceOptions options = small_device(GetParam());
    options.trace_path = folder_ / "trace.json";
    device_ = open_device(options);
    copy_ = device_->make_stream("rows", StreamRole::kCopy);
    compute_ = device_->make_stream("compute", StreamRole::kCompute);
  }
  Trace& trace() { return *device_->trace(); }
  void synchronize() {
    compute_->synchronize();
    copy_->synchronize();
  }
  ReadTrace finish() {
    synchronize();
    summary_ = trace().finish();
    return testing::read_trace(folder_.read("trace.json"));
  }
  std::unique_ptr<Gate> hold(Stream& stream, milliseconds time) {
    auto gate = std::make_unique<Gate>(*device_, time);
    gate->hold(stream);
    return gate;
  }

  TemporaryFolder folder_;
  TraceSummary summary_;
};
BACKEND_TEST(Traces);

TEST_P(Traces, CopiesAreSlicesOfTheirLink) {
  const PinnedBuffer host = device_->allocate_pinned(4 * kMiB, "host");
  const DeviceBuffer there = device_->allocate(4 * kMiB, "there");
  copy_->copy(there.data(), host.data(), 3 * kMiB, Link::kHostToDevice, {"layer", 7});
  copy_->copy(host.data(), there.data(), kMiB, Link::kDeviceToHost);
  copy_->copy(there.data(), there.data() + kMiB, kMiB, Link::kWithinDevice, "move");
  copy_->copy(nullptr, nullptr, 0, Link::kHostToDevice, "nothing");
  compute_->copy(there.data() + 3 * kMiB, host.data() + 3 * kMiB, 64, Link::kHostToDevice, "inputs");  // beside them
  const ReadTrace read = finish();
  ASSERT_EQ(read.slices.size(), 4u);
  const ReadSlice in = read.one("layer 7"), out = read.one("rows"), move = read.one("move"),
                  inputs = read.one("inputs");
  EXPECT_EQ(in.track, "H2D");
  EXPECT_EQ(in.bytes, 3 * kMiB);
  EXPECT_GT(in.us, 0);
  EXPECT_NEAR(in.gb_per_s, 3.0 * static_cast<double>(kMiB) / in.us / 1e3, 0.02 * in.gb_per_s + 0.01);
  EXPECT_EQ(out.track, "D2H");
  EXPECT_EQ(out.bytes, kMiB);
  EXPECT_GE(out.begin_us, in.end_us());
  EXPECT_EQ(move.track, "copies within device");
  EXPECT_EQ(inputs.track, "compute");
  EXPECT_EQ(inputs.link, "H2D");
  EXPECT_EQ(summary_.slices, 4);
  EXPECT_EQ(summary_.dropped_slices, 0);
}

TEST_P(Traces, SpansNestAndTakeAsLongAsTheirWork) {
  std::vector<std::unique_ptr<Gate>> gates;
  const auto begun = HostClock::now();
  {
    const TraceSpan layer(*compute_, {"layer", 0});
    for (const char* part : {"qkv", "mlp"}) {
      const TraceSpan span(*compute_, part);
      gates.push_back(hold(*compute_, milliseconds(40)));
    }
  }
  const TraceSpan after(*compute_, "after");
  synchronize();
  const double most_us = 1e3 * ms_since(begun);
  const ReadTrace read = finish();  // "after" is still open: no slice
  ASSERT_EQ(read.slices.size(), 3u);
  const ReadSlice layer = read.one("layer 0"), qkv = read.one("qkv"), mlp = read.one("mlp");
  for (const ReadSlice& part : {qkv, mlp}) {
    EXPECT_GE(part.begin_us, layer.begin_us);
    EXPECT_LE(part.end_us(), layer.end_us());
    EXPECT_GE(part.us, 39e3);
    EXPECT_LT(part.us, most_us - 39e3);  // the other one's
    EXPECT_EQ(part.track, "compute");
  }
  EXPECT_GE(mlp.begin_us, qkv.end_us());
  EXPECT_EQ(summary_.dropped_slices, 1);
}

// The host's slice around a stream's: one clock for both, whatever the stream's own is.
TEST_P(Traces, StreamsAndHostShareAClock) {
  {
    const HostSpan run(&trace(), trace().keep("run"));
    {
      const TraceSpan held(*compute_, "held");
      const auto gate = hold(*compute_, milliseconds(50));
      compute_->synchronize();
    }
    compute_->synchronize();
  }
  const ReadTrace read = finish();
  const ReadSlice run = read.one("run"), held = read.one("held");
  EXPECT_EQ(run.track, "run");
  constexpr double kErrorUs = 1000;
  EXPECT_GE(held.begin_us, run.begin_us - kErrorUs);
  EXPECT_GE(held.us, 49e3);
  EXPECT_LE(held.end_us(), run.end_us() + kErrorUs);
}

TEST_P(Traces, WhatOverlapsIsSeenToOverlap) {
  const PinnedBuffer host = device_->allocate_pinned(kMiB, "host");
  const DeviceBuffer there = device_->allocate(kMiB, "there");
  {
    const TraceSpan held(*compute_, "held");
    const auto begun = device_->make_event();
    compute_->record(*begun);
    begun->synchronize();
    Gate gate(*device_);
    gate.hold(*compute_);
    copy_->copy(there.data(), host.data(), kMiB, Link::kHostToDevice, "beside");
    copy_->synchronize();
    gate.open();
    compute_->synchronize();
  }
  const ReadTrace read = finish();
  const ReadSlice held = read.one("held"), beside = read.one("beside");
  EXPECT_GE(beside.begin_us, held.begin_us);
  EXPECT_LE(beside.end_us(), held.end_us());
}

TEST_P(Traces, TheFirstStepsOfEachRunAreRecordedWhole) {
  constexpr int kMore = 5;
  for (int run = 0; run < 2; ++run) {
    trace().begin_run();
    EXPECT_TRUE(trace().recording());
    for (int64_t number = 1; number <= Trace::kTracedSteps + kMore; ++number) {
      const TraceStep step(*compute_);
      const TraceSpan inside(*compute_, {"layer", 0});
      EXPECT_EQ(trace().recording(), number <= Trace::kTracedSteps);
    }
  }
  const ReadTrace read = finish();
  EXPECT_EQ(read.count("step"), 2 * Trace::kTracedSteps);
  EXPECT_EQ(read.count("layer"), 2 * Trace::kTracedSteps);
  EXPECT_EQ(summary_.steps, 2 * Trace::kTracedSteps);
  EXPECT_EQ(summary_.dropped_steps, 2 * kMore);
  EXPECT_EQ(read.other["dropped_decode_steps"], 2 * kMore);
  EXPECT_NE(read.notes.find("not recorded: 10 decode steps"), std::string::npos) << read.notes;
}

TEST_P(Traces, ARunMayBeLeftOut) {
  trace().skip_run();
  for (int i = 0; i < 3; ++i) {
    const TraceStep step(*compute_);
    const HostSpan host(&trace(), "host");
    EXPECT_FALSE(trace().recording());
  }
  trace().begin_run();
  { const TraceStep step(*compute_); }
  const ReadTrace read = finish();
  EXPECT_EQ(read.slices.size(), 1u);
  EXPECT_EQ(summary_.steps, 1);
  EXPECT_EQ(summary_.dropped_steps, 0);
}

TEST_P(Traces, WorkIsNoGraphWhileItIsRecorded) {
  const PinnedBuffer host = device_->allocate_pinned(64, "host");
  const DeviceBuffer there = device_->allocate(64, "there");
  Replay replay;
  const auto work = [&](int times) {
    for (int i = 0; i < times; ++i) {
      replay.run(*compute_, {1}, [&] { compute_->copy(there.data(), host.data(), 64, Link::kHostToDevice, "in"); });
    }
  };
  work(5);
  EXPECT_EQ(replay.launches(), 0);
  for (int64_t i = 0; i <= Trace::kTracedSteps; ++i) const TraceStep step(*compute_);
  work(5);
  EXPECT_EQ(replay.launches(), cuda() ? 4 : 0);  // the first of them is enqueued as it is
  const ReadTrace read = finish();
  EXPECT_EQ(read.count("in"), 5);
}

TEST_P(Traces, OfALongPrefillTheOutlineIsKept) {
  trace().begin_run();
  constexpr int64_t kLayers = 3, kGroups = Trace::kPrefillDetails / 2;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const TraceSpan span(*compute_, {"layer", layer});
    for (int64_t group = 0; group < kGroups; ++group) const TraceSpan inside(*compute_, {"group", group});
  }
  const TraceStep step(*compute_);
  const TraceSpan of_step(*compute_, "of the step");  // steps have details again
  const ReadTrace read = finish();
  EXPECT_EQ(read.count("layer"), kLayers);
  EXPECT_EQ(read.count("group"), Trace::kPrefillDetails);
  EXPECT_EQ(summary_.dropped_slices, kGroups + 2);  // those, and the two that are still open
}

TEST_P(Traces, NeverMoreThanTheMostAndAStepThatDoesNotFitIsNoStep) {
  trace().begin_run();
  {
    const TraceStep step(*compute_);
    for (int64_t i = 0; i < Trace::kMaxSlices; ++i) const TraceSpan span(*compute_, {"span", i});
  }
  { const TraceStep step(*compute_); }
  { const HostSpan host(&trace(), "kept for the host"); }
  const ReadTrace read = finish();
  EXPECT_LE(static_cast<int64_t>(read.slices.size()), Trace::kMaxSlices);
  EXPECT_EQ(read.count("kept for the host"), 1);
  EXPECT_EQ(summary_.slices + summary_.dropped_slices, Trace::kMaxSlices + 2);
  // On a GPU those are missing, too, for which all events were in flight; most are there.
  EXPECT_GT(read.count("span"), Trace::kMaxSlices / (cuda() ? 4 : 2));
  EXPECT_EQ(read.count("step, not whole"), 1);
  EXPECT_EQ(summary_.steps, 0);
  EXPECT_EQ(summary_.dropped_steps, 1);
  EXPECT_EQ(summary_.decode_s, 0);
}

TEST_P(Traces, NothingIsRecordedOnceItIsWritten) {
  { const TraceSpan span(*compute_, "before"); }
  const ReadTrace read = finish();
  EXPECT_EQ(read.slices.size(), 1u);
  const std::string written = folder_.read("trace.json");
  trace().begin_run();
  { const TraceStep step(*compute_); }
  EXPECT_FALSE(trace().recording());
  synchronize();
  copy_.reset();
  compute_.reset();
  device_.reset();
  EXPECT_EQ(folder_.read("trace.json"), written);
}

// As it happens when an exception takes the device away.
TEST_P(Traces, IsWrittenWhenTheDeviceGoes) {
  { const TraceSpan span(*compute_, "alone"); }
  copy_.reset();
  compute_.reset();
  device_.reset();
  EXPECT_EQ(testing::read_trace(folder_.read("trace.json")).one("alone").track, "compute");
}

TEST_P(Traces, AreNullWhereNobodyAsks) {
  copy_.reset();
  compute_.reset();
  device_ = open_device(small_device(GetParam()));
  compute_ = device_->make_stream("compute", StreamRole::kCompute);
  EXPECT_EQ(device_->trace(), nullptr);
  const TraceStep step(*compute_);
  const TraceSpan span(*compute_, "span");
  const HostSpan host(device_->trace(), "host");
  EXPECT_EQ(compute_->tracing().trace, nullptr);
  EXPECT_EQ(compute_->tracing().open_spans, 0);
  compute_->synchronize();
}

}  // namespace
}  // namespace headrace
