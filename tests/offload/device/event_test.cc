// Order between streams, on either backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/offload/device/backend_test.h"
#include "tests/offload/device/gate.h"

namespace headrace {
namespace {

using std::chrono::milliseconds;

// Words in host memory and on the device; what runs on the streams are copies of single words, and gates.
class Events : public BackendTest {
 protected:
  static constexpr int kWords = 2000;

  PinnedBuffer source_ = device_->allocate_pinned(kWords * sizeof(uint32_t), "source");
  PinnedBuffer result_ = device_->allocate_pinned(kWords * sizeof(uint32_t), "result");
  DeviceBuffer there_ = device_->allocate(kWords * sizeof(uint32_t), "there");
  std::unique_ptr<Stream> other_ = device_->make_stream("other", StreamRole::kCopy);
  std::unique_ptr<Event> event_ = device_->make_event();
  Gate first_{*device_}, second_{*device_};

  void SetUp() override {
    for (uint32_t i = 0; i < kWords; ++i) source_.as<uint32_t>()[i] = i + 1;
  }
  void TearDown() override {
    first_.open();
    second_.open();
    for (Stream* stream : {copy_.get(), compute_.get(), other_.get()}) stream->synchronize();
  }

  void put(Stream& stream, int from, int to) {
    stream.copy(there_.as<uint32_t>() + to, source_.as<uint32_t>() + from, sizeof(uint32_t), Link::kHostToDevice);
  }
  void get(Stream& stream, int from, int to) {
    stream.copy(result_.as<uint32_t>() + to, there_.as<uint32_t>() + from, sizeof(uint32_t), Link::kDeviceToHost);
  }
  uint32_t result(int index) { return std::atomic_ref(result_.as<uint32_t>()[index]).load(); }
};
BACKEND_TEST(Events);

// Pieces of a copy, each a stride after the one before, and nothing between them; the link counts their bytes.
TEST_P(Events, PiecesOfACopy) {
  constexpr size_t kWord = sizeof(uint32_t);
  std::fill_n(result_.as<uint32_t>(), kWords, 0u);
  copy_->copy(there_.data(), result_.data(), kWords * kWord, Link::kHostToDevice);
  const uint64_t before = device_->bytes_over(Link::kHostToDevice);
  copy_->copy_pieces(there_.as<uint32_t>() + 3, source_.as<uint32_t>() + 5,
                     {.bytes = 7 * kWord, .count = 4, .dst_stride = 100 * kWord, .src_stride = 9 * kWord},
                     Link::kHostToDevice);
  EXPECT_EQ(device_->bytes_over(Link::kHostToDevice) - before, 28 * kWord);
  copy_->copy(result_.data(), there_.data(), kWords * kWord, Link::kDeviceToHost);
  copy_->synchronize();
  for (int i = 0; i < kWords; ++i) {
    const int piece = (i - 3) / 100, within = (i - 3) % 100;
    const bool copied = i >= 3 && piece < 4 && within < 7;
    ASSERT_EQ(result_.as<uint32_t>()[i], copied ? static_cast<uint32_t>(5 + 9 * piece + within + 1) : 0u) << i;
  }
}

TEST_P(Events, CopiesAreCountedByLink) {
  const PinnedBuffer big = device_->allocate_pinned(3 * kMiB, "big");
  copy_->copy(there_.data(), source_.data(), 1000, Link::kHostToDevice);
  copy_->copy(there_.data() + 2000, there_.data(), 1000, Link::kWithinDevice);
  copy_->copy(result_.data(), there_.data() + 2000, 500, Link::kDeviceToHost);
  copy_->copy(nullptr, nullptr, 0, Link::kHostToDevice);
  copy_->synchronize();
  EXPECT_EQ(std::vector<std::byte>(result_.data(), result_.data() + 500),
            std::vector<std::byte>(source_.data(), source_.data() + 500));
  EXPECT_EQ(result_.data()[500], std::byte{0});
  EXPECT_EQ(device_->bytes_over(Link::kHostToDevice), 1000u);
  EXPECT_EQ(device_->bytes_over(Link::kDeviceToHost), 500u);
  EXPECT_EQ(device_->bytes_over(Link::kWithinDevice), 1000u);
}

TEST_P(Events, NeverRecordedIsPassed) {
  EXPECT_TRUE(event_->done());
  event_->synchronize();
  compute_->wait(*event_);
  compute_->synchronize();
}

TEST_P(Events, OrderTwoStreams) {
  for (int round = 0; round < 200; ++round) {
    put(*copy_, round, 0);
    copy_->record(*event_);
    compute_->wait(*event_);
    get(*compute_, 0, 0);
    compute_->synchronize();
    ASSERT_EQ(result(0), source_.as<uint32_t>()[round]);
  }
}

TEST_P(Events, AreDoneWhenWhatCameBeforeIs) {
  put(*copy_, 6, 0);
  copy_->synchronize();
  first_.hold(*copy_);
  copy_->record(*event_);
  EXPECT_FALSE(event_->done());
  compute_->wait(*event_);
  get(*compute_, 0, 0);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(result(0), 0u);
  first_.open();
  event_->synchronize();
  EXPECT_TRUE(event_->done());
  compute_->synchronize();
  EXPECT_EQ(result(0), 7u);
}

TEST_P(Events, DoNotWaitForWorkAfterTheRecord) {
  copy_->record(*event_);
  first_.hold(*copy_);
  compute_->wait(*event_);
  compute_->synchronize();  // would hang
  event_->synchronize();
  EXPECT_TRUE(event_->done());
}

TEST_P(Events, WaitTakesTheRecordBeforeIt) {
  put(*copy_, 6, 0);
  copy_->synchronize();
  first_.hold(*copy_);
  copy_->record(*event_);
  compute_->wait(*event_);  // of the first record
  second_.hold(*other_);
  other_->record(*event_);
  EXPECT_FALSE(event_->done());  // now of the second
  get(*compute_, 0, 0);
  // The second record is reached and the first is not: the wait still holds.
  second_.open();
  event_->synchronize();
  EXPECT_TRUE(event_->done());
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(result(0), 0u);
  first_.open();
  compute_->synchronize();
  EXPECT_EQ(result(0), 7u);
}

TEST_P(Events, ALaterRecordDoesNotHoldAnEarlierWait) {
  copy_->record(*event_);
  compute_->wait(*event_);
  first_.hold(*copy_);
  copy_->record(*event_);
  compute_->synchronize();  // would hang if the wait took the second record
  EXPECT_FALSE(event_->done());
  first_.open();
  event_->synchronize();
}

TEST_P(Events, MayGoWhileTheyAreWaitedFor) {
  put(*copy_, 6, 0);
  copy_->synchronize();
  first_.hold(*copy_);
  copy_->record(*event_);
  compute_->wait(*event_);
  get(*compute_, 0, 0);
  event_.reset();
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(result(0), 0u);
  first_.open();
  compute_->synchronize();
  EXPECT_EQ(result(0), 7u);
}

TEST_P(Events, OutliveTheStreamWhichFinishesItsWork) {
  auto stream = device_->make_stream("short-lived", StreamRole::kCopy);
  for (int i = 0; i < 100; ++i) {
    put(*stream, i, i);
    get(*stream, i, i);
  }
  stream->record(*event_);
  stream.reset();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(result(i), static_cast<uint32_t>(i + 1));
  EXPECT_TRUE(event_->done());
  compute_->wait(*event_);
  compute_->synchronize();
}

// Asking whether a stream has failed neither waits for it nor leaves something that looks like a failure.
TEST_P(Events, CheckDoesNotWait) {
  first_.hold(*copy_);
  for (int i = 0; i < 3; ++i) copy_->check();
  put(*compute_, 4, 0);
  get(*compute_, 0, 0);
  second_.hold(*compute_);  // a launch, which is checked
  first_.open();
  second_.open();
  compute_->synchronize();
  EXPECT_EQ(result(0), 5u);
  copy_->synchronize();
  copy_->check();
}

TEST_P(Events, AnyThreadMaySynchronize) {
  first_.hold(*compute_);
  std::atomic<int> back{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      compute_->synchronize();
      ++back;
    });
  }
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(back, 0);
  first_.open();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(back, 3);
}

// One word on the device, written by one stream and read by the other: the events are all the order there is.
TEST_P(Events, PingPong) {
  const auto back = device_->make_event();
  for (int i = 0; i < kWords; ++i) {
    copy_->wait(*back);
    put(*copy_, i, 0);
    copy_->record(*event_);
    compute_->wait(*event_);
    get(*compute_, 0, i);
    compute_->record(*back);
  }
  compute_->synchronize();
  for (int i = 0; i < kWords; ++i) ASSERT_EQ(result(i), static_cast<uint32_t>(i + 1));
}

}  // namespace
}  // namespace headrace
