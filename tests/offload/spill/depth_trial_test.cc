// A trial of depths on disks that are not there: what is too slow to be measured says nothing.
#include "offload/spill/depth_trial.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <thread>

#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kRequest = 4 * kKiB;

// Answers in the order of submission, each after what `pause` says of its number.
class PacedQueue final : public FileQueue {
 public:
  PacedQueue(const File& file, std::function<milliseconds(int)> pause)
      : FileQueue(file, kTrialDepths.back()), pause_(std::move(pause)) {}
  std::string describe() const override { return "paced"; }
  int concurrency() const override { return depth(); }

 protected:
  void start(int slot, const FileRequest& part) override {
    started_.push_back({.slot = slot, .value = int64_t(part.bytes)});
  }
  Result next() override {
    std::this_thread::sleep_for(pause_(answered_++));
    const Result result = started_.front();
    started_.pop_front();
    return result;
  }

 private:
  const std::function<milliseconds(int)> pause_;
  std::deque<Result> started_;
  int answered_ = 0;
};

class DepthTrialTest : public ::testing::Test {
 protected:
  std::vector<DepthRate> rates(std::function<milliseconds(int)> pause) {
    PacedQueue queue(file_, std::move(pause));
    std::vector<std::byte> memory(static_cast<size_t>(kTrialDepths.back()) * kRequest);
    const std::vector<Extent> cycle = {{.offset = 0, .bytes = 16 * kRequest}};
    DepthTrial trial(
        {.queue = &queue, .memory = memory, .request_bytes = kRequest, .cycle = cycle, .goes_on = [] { return true; }});
    const std::vector<DepthRate> rates = trial.run();
    EXPECT_EQ(queue.pending(), 0);
    return rates;
  }
  const TemporaryFolder folder_;
  const File file_ = File::temporary(folder_.path(), FileCaching::kBuffered);
};

TEST_F(DepthTrialTest, AQuickDiskHasARateOfManyReads) {
  const std::vector<DepthRate> found = rates([](int) { return milliseconds(1); });
  ASSERT_GE(found.size(), 2u);
  for (const DepthRate& rate : found) {
    EXPECT_GE(rate.requests, kMinRequests);
    EXPECT_GT(rate.gb_per_s, 0);
    EXPECT_LE(rate.gb_per_s, kRequest / 1e-3 / 1e9);
  }
  EXPECT_TRUE(choose_depth(found, "measured").why.starts_with("measured: 32 at once 0.00")) << "GB/s of 4 KiB reads";
}

// Six reads or fewer in the time of a depth, and so much for what is under way at the end that there is no second
// round.
TEST_F(DepthTrialTest, ASlowDiskHasNone) {
  const std::vector<DepthRate> found = rates([](int number) { return milliseconds(number < 14 ? 15 : 2); });
  ASSERT_EQ(found.size(), 2u);
  for (const DepthRate& rate : found) EXPECT_LT(rate.requests, kMinRequests);
  EXPECT_EQ(choose_depth(found, "measured").depth, kMinReadDepth);
  EXPECT_EQ(choose_depth(found, "measured").why, "measured: too few reads to tell");
}

// The first is done when the time of a depth is over, the others with it: two reads in no time.
TEST_F(DepthTrialTest, ABurstIsNoRate) {
  const std::vector<DepthRate> found = rates([](int number) { return milliseconds(number == 0 ? 101 : 0); });
  ASSERT_GE(found.size(), 2u);
  EXPECT_LT(found[0].requests, kMinRequests);
  EXPECT_GE(found[1].requests, kMinRequests);
  EXPECT_EQ(choose_depth({found.data(), 2}, "measured").depth, kMinReadDepth);
}

}  // namespace
}  // namespace headrace
