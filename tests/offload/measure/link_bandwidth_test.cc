// The link's measurement: on a link of a known speed it finds that speed, the data arrives, and copies that are wrong
// are found out.
#include "offload/measure/link_bandwidth.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/offload/device/backend_test.h"
#include "tests/support/forwarding_device.h"

namespace headrace {
namespace {

constexpr size_t kCopyBytes = 256 * kKiB;

TEST(LinkPeak, FindsThePaceOfALink) {
  DeviceOptions options = small_device(DeviceChoice::kCpu);
  options.copy_gb_per_s = 0.05;  // far below what memory gives, so that only the pace decides
  const auto device = open_device(options);
  LinkMeter meter(*device, 512 * kKiB);
  for (const LinkUse use : kLinkUses) {
    const double expected = use == LinkUse::kBoth ? 0.1 : 0.05;
    LinkPeak peak;
    for (int tries = 0; tries < 8 && peak.fastest < 0.6 * expected; ++tries) {
      peak = meter.measure(use, kCopyBytes, kMiB);
      EXPECT_LE(peak.fastest, 1.05 * expected) << link_use_name(use);  // never faster than the link
    }
    EXPECT_GE(peak.fastest, 0.6 * expected) << link_use_name(use);  // and a busy machine may only be slower
    EXPECT_EQ(peak.use, use);
    EXPECT_EQ(peak.copy_bytes, kCopyBytes);
    EXPECT_EQ(peak.copies, 4);
    EXPECT_EQ(peak.rounds, 5);
    EXPECT_LE(peak.slowest, peak.gb_per_s);
    EXPECT_LE(peak.gb_per_s, peak.fastest);
  }
}

// A device whose copies of kCopyBytes over one link are dropped from a certain one on.
class FaultyStream final : public Stream {
 public:
  FaultyStream(std::unique_ptr<Stream> inner, Link link, int* left)
      : Stream(Backend::kCpu), inner_(std::move(inner)), link_(link), left_(left) {}
  void record(Event& event) override { inner_->record(event); }
  void wait(const Event& event) override { inner_->wait(event); }
  void synchronize() override { inner_->synchronize(); }
  void check() override { inner_->check(); }
  void* native() const override { return nullptr; }
  Stream& inner() { return *inner_; }

 protected:
  void copy_bytes(void* dst, const void* src, size_t bytes, Link link) override {
    if (link != link_ || bytes != kCopyBytes || (*left_)-- > 0) inner_->copy(dst, src, bytes, link);
  }

 private:
  std::unique_ptr<Stream> inner_;
  const Link link_;
  int* const left_;
};

class FaultyClock final : public TraceClock {
 public:
  explicit FaultyClock(std::unique_ptr<TraceClock> inner) : inner_(std::move(inner)) {}
  void stamp(Stream& stream, TraceSlice& slice, TraceEdge edge) override {
    inner_->stamp(static_cast<FaultyStream&>(stream).inner(), slice, edge);
  }
  void collect() override { inner_->collect(); }
  int64_t host_ns(int64_t stamp_ns) const override { return inner_->host_ns(stamp_ns); }

 private:
  std::unique_ptr<TraceClock> inner_;
};

class FaultyDevice final : public testing::ForwardingDevice {
 public:
  FaultyDevice(Link link, int right_copies)
      : ForwardingDevice(open_device(small_device(DeviceChoice::kCpu))), link_(link), left_(right_copies) {}
  std::string name() const override { return "a faulty device"; }
  std::unique_ptr<TraceClock> make_trace_clock() override {
    return std::make_unique<FaultyClock>(ForwardingDevice::make_trace_clock());
  }

 protected:
  std::unique_ptr<Stream> new_stream(std::string_view name, StreamRole role) override {
    return std::make_unique<FaultyStream>(ForwardingDevice::new_stream(name, role), link_, &left_);
  }

 private:
  const Link link_;
  int left_;
};

TEST(LinkPeak, FindsOutCopiesThatDoNotArrive) {
  for (const auto& [link, use] : {std::pair{Link::kHostToDevice, LinkUse::kToDevice},
                                  {Link::kDeviceToHost, LinkUse::kToHost},
                                  {Link::kHostToDevice, LinkUse::kBoth},
                                  {Link::kDeviceToHost, LinkUse::kBoth}}) {
    FaultyDevice device(link, 2);
    LinkMeter meter(device, kMiB);
    try {
      meter.measure(use, kCopyBytes, kMiB, 1);
      ADD_FAILURE() << link_use_name(use) << " trusts what did not arrive";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("a faulty device: a copy"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("went wrong at byte"), std::string::npos) << error.what();
    }
  }
}

TEST(LinkPeak, EveryWayFindsOutWhatDoesNotArrive) {
  const auto expect_found = [](const char* way, Link link, const std::function<void(LinkMeter&)>& measure) {
    FaultyDevice device(link, 0);
    LinkMeter meter(device, kMiB);
    try {
      measure(meter);
      ADD_FAILURE() << way << " trusts what did not arrive";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("went wrong at byte"), std::string::npos) << error.what();
    }
  };
  expect_found("pages", Link::kHostToDevice,
               [](LinkMeter& meter) { meter.measure_scattered(ScatterWay::kCalls, kCopyBytes, 512 * kKiB, 2); });
  expect_found("not pinned, in", Link::kHostToDevice,
               [](LinkMeter& meter) { meter.measure_pageable(LinkUse::kToDevice, kCopyBytes, kMiB, 2); });
  expect_found("within", Link::kWithinDevice, [](LinkMeter& meter) { meter.measure_within(kCopyBytes, kMiB, 2); });
}

class LinkPeakTest : public BackendTest {};
BACKEND_TEST(LinkPeakTest);

TEST_P(LinkPeakTest, MeasuresEverySize) {
  const uint64_t used = device_->vram().used_bytes(), host_used = device_->host_mem().used_bytes();
  {
    LinkMeter meter(*device_, 3 * kMiB);  // no multiple of 2 MiB: the last MiB is not reached
    for (const uint64_t bytes : {uint64_t{4096}, kMiB, 2 * kMiB, 3 * kMiB}) {
      for (const LinkUse use : kLinkUses) {
        const LinkPeak peak = meter.measure(use, bytes, 4 * kMiB, 2);
        EXPECT_GT(peak.gb_per_s, 0) << link_use_name(use) << " " << bytes;
        EXPECT_LE(peak.copies, LinkMeter::kMaxCopies);
        EXPECT_EQ(static_cast<uint64_t>(peak.copies), std::min<uint64_t>(128, 4 * kMiB / bytes));
      }
    }
  }
  EXPECT_EQ(device_->vram().used_bytes(), used);
  EXPECT_EQ(device_->host_mem().used_bytes(), host_used);
}

TEST_P(LinkPeakTest, MeasuresPagesThatLieApart) {
  LinkMeter meter(*device_, 2 * kMiB);
  for (const ScatterWay way : kScatterWays) {
    for (const uint64_t page : {uint64_t{4096}, 16 * kKiB, 48 * kKiB}) {  // 48 KiB: 21 pages, no whole round
      const LinkPeak peak = meter.measure_scattered(way, page, kMiB, 2);
      EXPECT_GT(peak.gb_per_s, 0) << scatter_way_name(way);
      EXPECT_EQ(static_cast<uint64_t>(peak.copies), kMiB / page);
      EXPECT_LE(peak.slowest, peak.fastest);
    }
  }
}

TEST_P(LinkPeakTest, MeasuresWhatIsNotPinnedAndTheDeviceItself) {
  LinkMeter meter(*device_, kMiB);
  for (const LinkUse use : kLinkUses) EXPECT_GT(meter.measure_pageable(use, 256 * kKiB, kMiB, 2).gb_per_s, 0);
  EXPECT_GT(meter.measure_within(kMiB, 4 * kMiB, 2).gb_per_s, 0);
  for (const LinkUse use : {LinkUse::kToDevice, LinkUse::kToHost}) {
    const double us = meter.latency_us(use, 20);
    EXPECT_GT(us, 0.01);
    EXPECT_LT(us, 1e5);
  }
}

TEST_P(LinkPeakTest, DoesNotFitIsAnErrorWithNumbers) {
  try {
    LinkMeter meter(*device_, kSmallVram);
    ADD_FAILURE() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_NE(std::string(error.what()).find("measuring the link"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headrace
