// Verifying beside the disk: request by request, and counted for what it costs who takes: the time in which an extent
// has arrived and is not verified, no more and no less.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "offload/host/clock.h"
#include "tests/offload/spill/spill_file_fixture.h"
#include "tests/support/file_faults.h"

namespace headrace {
namespace {

using std::chrono::milliseconds;
using testing::ScriptedFaults;

// Whoever comes waits while it is closed.
class Door {
 public:
  void close() { set(true); }
  void open() { set(false); }
  void pass() {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [&] { return !closed_; });
  }

 private:
  void set(bool closed) {
    const std::lock_guard lock(mutex_);
    closed_ = closed;
    moved_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable moved_;
  bool closed_ = false;
};

bool comes(const std::function<bool()>& true_of) {
  for (const auto start = HostClock::now(); ms_since(start) < 30000;) {
    if (true_of()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

class SpillVerifyTest : public SpillFileTest {
 protected:
  // Sums pass a door.
  SpillFileOptions behind_a_door(int slots) {
    SpillFileOptions slow = options(slots);
    slow.sum = [this](std::span<const std::byte> block) {
      door_.pass();
      ++sums_;
      return static_cast<uint64_t>(block[0]) + 1;
    };
    return slow;
  }
  // As fast as they come.
  void take_some(SpillFile& file, int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_NE(file.take(), nullptr);
      file.release(*copy_);
    }
  }
  Door door_;
  std::atomic<int> sums_ = 0;
};
BACKEND_TEST(SpillVerifyTest);

TEST_P(SpillVerifyTest, AWaitForTheVerifierIsCounted) {
  SpillFile file(*device_, behind_a_door(3));
  write_all(file);
  door_.close();
  file.begin_reads(extents());
  ASSERT_TRUE(comes([&] { return file.stats().read_bytes > 0; }));
  EXPECT_EQ(file.stats().verify_wait_ms, 0);  // nobody waits
  const auto start = HostClock::now();
  std::thread taker([&] { EXPECT_NE(file.take(), nullptr); });
  EXPECT_TRUE(comes([&] { return file.stats().verify_wait_ms > 0; }));  // also while it lasts
  const double before = file.stats().verify_wait_ms;
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_GE(file.stats().verify_wait_ms, before + 30);
  door_.open();
  taker.join();
  const double counted = file.stats().verify_wait_ms;
  EXPECT_GE(counted, 30);
  EXPECT_LE(counted, ms_since(start));
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(file.stats().verify_wait_ms, counted);  // it is over
}

TEST_P(SpillVerifyTest, AWaitForTheDiskIsNotCounted) {
  Door disk;
  const ScriptedFaults faults([&](FileOp op, const std::string&, uint64_t, uint64_t) {
    if (op == FileOp::kRead) disk.pass();
    return FileFault{};
  });
  SpillFile file(*device_, behind_a_door(2));
  write_all(file);
  disk.close();
  door_.close();
  file.begin_reads(extents());
  std::thread taker([&] { EXPECT_NE(file.take(), nullptr); });
  std::this_thread::sleep_for(milliseconds(40));
  EXPECT_EQ(file.stats().verify_wait_ms, 0);
  const auto start = HostClock::now();
  disk.open();
  EXPECT_TRUE(comes([&] { return file.stats().verify_wait_ms > 0; }));
  std::this_thread::sleep_for(milliseconds(10));
  door_.open();
  taker.join();
  EXPECT_GE(file.stats().verify_wait_ms, 10);
  EXPECT_LE(file.stats().verify_wait_ms, ms_since(start));
}

// A slow verifier keeps who takes waiting.
TEST_P(SpillVerifyTest, TheWaitForASlowVerifierIsCounted) {
  SpillFileOptions slow = options(2);
  std::atomic<bool> reads = false;
  slow.sum = [&](std::span<const std::byte> block) {
    if (reads) std::this_thread::sleep_for(milliseconds(2));
    return static_cast<uint64_t>(block[0]);
  };
  SpillFile file(*device_, slow);
  write_all(file);
  reads = true;
  const auto start = HostClock::now();
  file.begin_reads(extents());
  take_some(file, 30);
  const double took = ms_since(start);
  const SpillStats stats = file.stats();
  EXPECT_GE(stats.checksum_ms, 30 * 2);
  EXPECT_GT(stats.verify_wait_ms, 0);  // how much depends on the machine: a busy one also waits for the disk
  EXPECT_LE(stats.verify_wait_ms, took);
}

// A wait that ends with the reads has lasted until then.
TEST_P(SpillVerifyTest, AWaitMayEndWithTheReads) {
  SpillFile file(*device_, behind_a_door(3));
  write_all(file);
  door_.close();
  file.begin_reads(extents());
  const auto start = HostClock::now();
  std::thread taker([&] { EXPECT_EQ(file.take(), nullptr); });
  EXPECT_TRUE(comes([&] { return file.stats().verify_wait_ms > 0; }));
  const double before = file.stats().verify_wait_ms;
  std::this_thread::sleep_for(milliseconds(10));
  std::thread opener([&] {  // what is being verified keeps stop_reads(), but not the taker
    taker.join();
    std::this_thread::sleep_for(milliseconds(30));
    door_.open();
  });
  file.stop_reads();
  const double all = ms_since(start);
  opener.join();
  const double counted = file.stats().verify_wait_ms;
  EXPECT_GE(counted, before + 10);
  EXPECT_LE(counted, all - 30);
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(file.stats().verify_wait_ms, counted);
  file.begin_reads(extents());
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(file.stats().verify_wait_ms, counted);  // nobody waits
  read_some(file, 5);
}

// What of an extent has come in is verified while the rest is under way.
TEST_P(SpillVerifyTest, BeginsBeforeTheSpanIsThere) {
  constexpr uint64_t kLarge = 5 * kMiB / 2;  // of three requests
  const SpillCut cut(kLarge);
  ASSERT_EQ(cut.requests(kLarge), 3u);
  SpillFileOptions large = behind_a_door(1);
  large.bytes = large.grain_bytes = large.slot_bytes = kLarge;
  large.depth = 1;  // one after the other
  Door last;
  const ScriptedFaults faults([&](FileOp op, const std::string&, uint64_t offset, uint64_t) {
    if (op == FileOp::kRead && offset + kMiB > kLarge) last.pass();
    return FileFault{};
  });
  SpillFile file(*device_, large);
  const DeviceBuffer from = device_->allocate(kLarge, "a test");
  fill(from, std::byte{9});
  file.write({.offset = 0, .bytes = kLarge}, from.data(), *copy_, "test");
  file.finish_writes();
  EXPECT_EQ(sums_.load(), 3);
  last.close();
  file.begin_reads({{.offset = 0, .bytes = kLarge}});
  EXPECT_TRUE(comes([&] { return sums_ == 5; }));
  EXPECT_EQ(file.stats().read_bytes, 0u);
  last.open();
  EXPECT_NE(file.take(), nullptr);
  EXPECT_GE(sums_.load(), 6);
}

// Grains that are cut into several requests: every byte is verified, and a wrong one is found where it is.
TEST_P(SpillVerifyTest, LargeGrainsAreVerifiedInParts) {
  constexpr uint64_t kLarge = 5 * kMiB / 2, kFile = 4 * kLarge;
  SpillFileOptions large = options(2);
  large.grain_bytes = kLarge, large.bytes = kFile, large.slot_bytes = 2 * kLarge;
  const DeviceBuffer from = device_->allocate(kFile, "a test");
  const PinnedBuffer host = device_->allocate_pinned(kFile, "a test");
  for (uint64_t i = 0; i < kFile / 8; ++i) host.as<uint64_t>()[i] = i * 0x9E3779B97F4A7C15ull;
  copy_->copy(from.data(), host.data(), kFile, Link::kHostToDevice);
  copy_->synchronize();
  const std::vector<Extent> cycle = {{kLarge, 2 * kLarge}, {0, kLarge}, {3 * kLarge, kLarge}};
  std::atomic<uint64_t> wrong = kFile;
  const ScriptedFaults faults({}, [&](uint64_t offset, std::span<std::byte> data) {
    if (offset <= wrong && wrong < offset + data.size()) data[wrong - offset] ^= std::byte{1};
  });
  for (const uint64_t place : {kFile, kLarge - 1, kLarge + kMiB, kFile - 1}) {
    SpillFile file(*device_, large);
    for (const Extent& extent : cycle) file.write(extent, from.data() + extent.offset, *copy_, "test");
    file.finish_writes();
    wrong = place;
    file.begin_reads(cycle);
    const auto take_all = [&] {
      for (int i = 0; i < 9; ++i) {
        const Extent extent = cycle[static_cast<size_t>(i) % cycle.size()];
        const std::byte* const data = file.take();
        ASSERT_NE(data, nullptr);
        EXPECT_EQ(std::memcmp(data, host.data() + extent.offset, extent.bytes), 0) << i;
        file.release(*copy_);
      }
    };
    if (place == kFile) {
      take_all();
      continue;
    }
    const SpillCut cut(kLarge);
    uint64_t begin = place / kLarge * kLarge;
    while (begin + cut.block_bytes(begin) <= place) begin += cut.block_bytes(begin);
    const std::string text = error_of(take_all);
    EXPECT_TRUE(has(text, str("the ", cut.block_bytes(begin), " bytes at offset ", begin, " are not what"))) << text;
  }
}

}  // namespace
}  // namespace headrace
