// Replay: what is enqueued comes out the same, as a graph or not; what is recorded, and when.
#include "offload/device/graph.h"

#include <gtest/gtest.h>

#include "tests/offload/device/backend_test.h"

namespace headrace {
namespace {

class ReplayTest : public BackendTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    Replay::check_keys(false);  // these count how often calls are enqueued
  }
  static constexpr uint64_t kBytes = 4096;

  // A copy of `from_` to `to_`; counts how often the host was asked.
  void run(Replay* replay, const Replay::Key& key) {
    replay->run(*compute_, key, [this] {
      ++asked_;
      compute_->copy(to_.data(), from_.data(), kBytes, Link::kWithinDevice);
    });
  }
  bool copied(int value) {
    compute_->synchronize();
    const std::vector<std::byte> bytes = read(to_);
    return std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == std::byte(value); });
  }

  DeviceBuffer from_ = device_->allocate(kBytes, "a test"), to_ = device_->allocate(kBytes, "a test");
  int asked_ = 0;
};
BACKEND_TEST(ReplayTest);

TEST_P(ReplayTest, RunsWithWhatIsInMemoryNow) {
  Replay replay;
  for (int i = 1; i <= 5; ++i) {
    fill(from_, std::byte(i));
    const uint64_t before = device_->bytes_over(Link::kWithinDevice);
    run(&replay, {1});
    EXPECT_TRUE(copied(i)) << i;
    EXPECT_EQ(device_->bytes_over(Link::kWithinDevice) - before, kBytes) << i;
  }
  EXPECT_EQ(asked_, cuda() ? 2 : 5);  // once to run, once to record
  EXPECT_EQ(replay.launches(), cuda() ? 4 : 0);
}

TEST_P(ReplayTest, KeepsTheGraphsLastUsed) {
  Replay replay(2);
  const auto asked_for = [&](int64_t key) {
    const int before = asked_;
    fill(from_, std::byte(key));
    run(&replay, {7, key});
    EXPECT_TRUE(copied(static_cast<int>(key)));
    return asked_ - before;
  };
  for (const int64_t key : {1, 2, 1, 2}) EXPECT_EQ(asked_for(key), 1);
  for (const int64_t key : {2, 1}) EXPECT_EQ(asked_for(key), cuda() ? 0 : 1);
  EXPECT_EQ(asked_for(3), 1);  // takes the place of 2
  EXPECT_EQ(asked_for(1), cuda() ? 0 : 1);
  EXPECT_EQ(asked_for(2), 1);  // takes that of 3
  EXPECT_EQ(asked_for(1), cuda() ? 0 : 1);
  EXPECT_EQ(asked_for(2), 1);
  EXPECT_EQ(asked_for(2), cuda() ? 0 : 1);
}

// What is thrown while a graph is recorded comes out, nothing of it has run, and the stream and the key go on.
TEST_P(ReplayTest, AnErrorDropsTheRecording) {
  Replay replay;
  fill(from_, std::byte{1});
  run(&replay, {1});
  EXPECT_TRUE(copied(1));
  fill(from_, std::byte{2});
  EXPECT_THROW(replay.run(*compute_, {1},
                          [this] {
                            if (cuda()) compute_->copy(to_.data(), from_.data(), kBytes, Link::kWithinDevice);
                            throw_error(ExitCode::kInternal, "a test", "fails");
                          }),
               Error);
  EXPECT_TRUE(copied(1));
  EXPECT_EQ(replay.launches(), 0);
  for (int i = 0; i < 2; ++i) run(&replay, {1});
  EXPECT_TRUE(copied(2));
  EXPECT_EQ(asked_, cuda() ? 2 : 3);
}

// A key that lacks a value on which the calls depend: a size, or an address.
TEST_P(ReplayTest, AKeyThatLacksAValueIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Replay::check_keys(true);
  Replay replay;
  for (int i = 0; i < 4; ++i) run(&replay, {1});
  const auto copy = [this](Replay* of, uint64_t bytes, uint64_t at) {
    of->run(*compute_, {2}, [&] { compute_->copy(to_.data() + at, from_.data(), bytes, Link::kWithinDevice); });
  };
  copy(&replay, 64, 0);
  copy(&replay, 64, 0);
  EXPECT_DEATH(copy(&replay, 128, 0), "key 2 0 0 0 stands for different calls");
  EXPECT_DEATH(copy(&replay, 64, 8), "stands for different calls");
  copy(&replay, 64, 0);
  compute_->synchronize();
}

// What cannot be in a graph is an error, not a wrong result, and the stream is whole after it. Where nothing is
// recorded it does no harm.
TEST_P(ReplayTest, NoSynchronizingInside) {
  Replay replay;
  const auto enqueue = [this] { compute_->synchronize(); };
  replay.run(*compute_, {1}, enqueue);
  if (cuda()) {
    EXPECT_THROW(replay.run(*compute_, {1}, enqueue), Error);
  } else {
    replay.run(*compute_, {1}, enqueue);
  }
  fill(from_, std::byte{3});
  for (int i = 0; i < 3; ++i) run(&replay, {2});
  EXPECT_TRUE(copied(3));
}

}  // namespace
}  // namespace headrace
