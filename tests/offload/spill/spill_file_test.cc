// SpillFile: what is written is what is taken, again and again, whatever the slots and the body; what is not is an
// error that names file and offset; nothing is left behind.
#include "offload/spill/spill_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/offload/spill/spill_file_fixture.h"
#include "tests/support/file_faults.h"

namespace headrace {
namespace {

using testing::failing;
using testing::ScriptedFaults;  // made before the file, whose thread asks them until it goes

BACKEND_TEST(SpillFileTest);

TEST_P(SpillFileTest, WhatIsWrittenIsReadAgainAndAgain) {
  const uint64_t before = device_->host_mem().used_bytes();
  for (const FileQueueBody body : {FileQueueBody::kAuto, FileQueueBody::kThreads}) {
    for (const int slots : {1, 2, 7}) {
      SpillFile file(*device_, options(slots, body));
      EXPECT_EQ(device_->host_mem().used_bytes(), before + static_cast<uint64_t>(slots) * kSlot);
      write_all(file);
      file.begin_reads(extents());
      read_some(file, 60);
      const SpillStats stats = file.stats();
      EXPECT_EQ(stats.file_bytes, kBytes);
      EXPECT_EQ(stats.written_bytes, kBytes);
      EXPECT_GT(stats.read_bytes, 2 * kBytes);
      EXPECT_TRUE(body == FileQueueBody::kAuto || has(stats.how, "16 threads, ")) << stats.how;
      EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
    }
  }
  EXPECT_EQ(device_->host_mem().used_bytes(), before);
}

// Reads are stopped with extents under way, waiting and taken; more is written; they begin anew with the first.
TEST_P(SpillFileTest, ReadsStopAndBeginAgain) {
  SpillFile file(*device_, options(3));
  write_all(file);
  for (const int count : {0, 1, 5, 14}) {
    file.begin_reads(extents());
    read_some(file, count);
    file.stop_reads();
    file.stop_reads();
    EXPECT_EQ(file.take(), nullptr);
    write_all(file);
  }
  file.begin_reads(extents());
  read_some(file, 20);
}

TEST_P(SpillFileTest, WhoWaitsIsToldThatReadsStop) {
  const ScriptedFaults slow([](FileOp op, const std::string&, uint64_t, uint64_t) {
    if (op == FileOp::kRead) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return FileFault{};
  });
  SpillFile file(*device_, options(2));
  write_all(file);
  file.begin_reads(extents());
  std::thread taker([&] {
    while (file.take() != nullptr) file.release(*copy_);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  file.stop_reads();
  taker.join();
}

TEST_P(SpillFileTest, MayGoAtAnyTime) {
  for (const int count : {0, 1, 3}) {
    SpillFile file(*device_, options(2));
    write_all(file);
    file.begin_reads(extents());
    read_some(file, count);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_P(SpillFileTest, AFlippedBitIsNeverTaken) {
  for (const FileQueueBody body : {FileQueueBody::kAuto, FileQueueBody::kThreads}) {
    std::atomic<int> reads = 0;
    const ScriptedFaults faults({}, [&](uint64_t offset, std::span<std::byte> data) {
      if (offset <= 17 * kGrain && 17 * kGrain < offset + data.size() && ++reads == 2) {
        data[17 * kGrain - offset + 777] ^= std::byte{0x10};
      }
    });
    SpillFile file(*device_, options(4, body));
    write_all(file);
    file.begin_reads(extents());
    const std::string text = error_of([&] {
      for (int i = 0; i < 60; ++i) {
        file.take();
        file.release(*copy_);
      }
    });
    EXPECT_TRUE(has(text, folder_.path())) << text;
    EXPECT_TRUE(has(text, str("the 65536 bytes at offset ", 17 * kGrain, " are not what was written there"))) << text;
    EXPECT_EQ(reads.load(), 2);
    error_of([&] { file.check(); });
    error_of([&] { file.take(); });  // and it stays an error
  }
}

TEST_P(SpillFileTest, AReadThatFailsNamesFileAndOffset) {
  const ScriptedFaults faults(failing(FileOp::kRead, 4, EIO));
  SpillFile file(*device_, options(3));
  write_all(file);
  file.begin_reads(extents());
  const std::string text = error_of([&] {
    while (file.take() != nullptr) file.release(*copy_);
  });
  EXPECT_TRUE(has(text, folder_.path())) << text;
  EXPECT_TRUE(has(text, "at offset ")) << text;
  EXPECT_TRUE(has(text, "(EIO)")) << text;
  file.stop_reads();
}

TEST_P(SpillFileTest, AFullDiskIsNamedWhenItIsMet) {
  for (const int slots : {1, 4}) {
    const ScriptedFaults faults(failing(FileOp::kWrite, 5, ENOSPC));
    SpillFile file(*device_, options(slots));
    const std::string text = error_of([&] { write_all(file); });
    EXPECT_TRUE(has(text, "No space left on device (ENOSPC)")) << text;
    EXPECT_TRUE(has(text, "The disk is full")) << text;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_P(SpillFileTest, WhatCannotBeMadeLeavesNothing) {
  const uint64_t before = device_->host_mem().used_bytes();
  {
    const ScriptedFaults faults(failing(FileOp::kAllocate, 0, ENOSPC));
    EXPECT_TRUE(has(error_of([&] { SpillFile(*device_, options(2)); }), "has no room for 2.25 MiB"));
  }
  SpillFileOptions gone = options(2);
  gone.folder += "/gone";
  EXPECT_TRUE(has(error_of([&] { SpillFile(*device_, gone); }), "/gone"));
  SpillFileOptions large = options(2);
  large.slots = 4000;
  EXPECT_THROW(SpillFile(*device_, large), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_EQ(device_->host_mem().used_bytes(), before);
}

// How many reads are under way at once: what is known, what a trial on the file itself says, or what is usual where the
// file is too small for one. A trial changes nothing of what is read.
TEST_P(SpillFileTest, TheDepthOfReadsIsKnownOrMeasured) {
  const auto depth_of = [&](SpillFileOptions options, SpillStats* stats) {
    SpillFile file(*device_, options);
    write_all(file);
    EXPECT_EQ(file.stats().depth.depth, 0);
    file.begin_reads(extents());
    read_some(file, 30);
    file.stop_reads();
    file.begin_reads(extents());
    read_some(file, 3);
    *stats = file.stats();
    return stats->depth.depth;
  };
  SpillStats stats;
  EXPECT_EQ(depth_of(options(3), &stats), 32);
  EXPECT_EQ(stats.depth.why, "too little to measure on");
  EXPECT_EQ(stats.depth_ms, 0);
  SpillFileOptions known = options(3);
  known.depth = {.depth = 3, .why = "by a test"};
  EXPECT_EQ(depth_of(known, &stats), 3);
  EXPECT_EQ(stats.depth.why, "by a test");
  EXPECT_EQ(stats.reads_at_once, 3);
  SpillFileOptions narrow = options(63);
  narrow.least_measured_bytes = kBytes;
  EXPECT_EQ(depth_of(narrow, &stats), 32);
  EXPECT_EQ(stats.depth.why, "no room to try more");
  EXPECT_EQ(stats.depth_ms, 0);
  SpillFileOptions measured = options(64);
  measured.least_measured_bytes = kBytes;
  // A disk that takes one request at a time.
  const ScriptedFaults faults([](FileOp op, const std::string&, uint64_t, uint64_t) {
    if (op == FileOp::kRead) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return FileFault{};
  });
  depth_of(measured, &stats);
  if (has(stats.how, "threads")) GTEST_SKIP() << "no io_uring: 16 at once, and nothing to try";
  EXPECT_TRUE(stats.depth.depth == 32 || stats.depth.depth == 64) << stats.depth.depth;
  EXPECT_EQ(stats.reads_at_once, stats.depth.depth);
  EXPECT_TRUE(stats.depth.why.starts_with("measured at start: 32 at once ")) << stats.depth.why;
  EXPECT_TRUE(has(stats.depth.why, ", 64 ")) << stats.depth.why;
  EXPECT_GT(stats.depth_ms, 0);
  EXPECT_LT(stats.depth_ms, 5000);
}

// The depth is a limit: what the ring has no room for, and what the threads do not take up, is not under way.
TEST_P(SpillFileTest, SaysHowManyReadsThereAreAtMost) {
  const auto at_most = [&](int slots, FileQueueBody body) {
    SpillFileOptions wanted = options(slots, body);
    wanted.least_measured_bytes = kBytes;
    SpillFile file(*device_, wanted);
    write_all(file);
    EXPECT_EQ(file.stats().reads_at_once, 0);
    file.begin_reads(extents());
    read_some(file, 3);
    const SpillStats stats = file.stats();
    EXPECT_EQ(stats.depth.why, "no room to try more");
    return stats.reads_at_once;
  };
  EXPECT_EQ(at_most(2, FileQueueBody::kAuto), 2);
  EXPECT_EQ(at_most(2, FileQueueBody::kThreads), 2);
  EXPECT_EQ(at_most(64, FileQueueBody::kThreads), 16);
}

TEST_P(SpillFileTest, ATrialThatFailsIsAnErrorAndNoHang) {
  SpillFileOptions measured = options(64);
  measured.least_measured_bytes = kBytes;
  const ScriptedFaults faults(failing(FileOp::kRead, 20, EIO));
  SpillFile file(*device_, measured);
  write_all(file);
  file.begin_reads(extents());
  EXPECT_TRUE(has(error_of([&] { file.take(); }), "(EIO)"));
}

TEST_P(SpillFileTest, ATrialIsStopped) {
  SpillFileOptions measured = options(64);
  measured.least_measured_bytes = kBytes;
  for (const int ms : {0, 5, 60}) {
    SpillFile file(*device_, measured);
    write_all(file);
    file.begin_reads(extents());
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    file.stop_reads();
    file.begin_reads(extents());
    read_some(file, 3);
    SpillFile other(*device_, measured);  // which goes while it is measured
    write_all(other);
    other.begin_reads(extents());
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  }
}

// Of a part of a trial nothing is kept: the next reads try again.
TEST_P(SpillFileTest, AStoppedTrialSaysNothing) {
  SpillFileOptions measured = options(64);
  measured.least_measured_bytes = kBytes;
  SpillFile file(*device_, measured);
  write_all(file);
  if (has(file.stats().how, "threads")) GTEST_SKIP() << "no io_uring: nothing to try";
  std::atomic<int> reads = 0;
  {
    const ScriptedFaults faults([&](FileOp op, const std::string&, uint64_t, uint64_t) {
      if (op != FileOp::kRead) return FileFault{};
      ++reads;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a whole trial takes longer than a second
      return FileFault{};
    });
    file.begin_reads(extents());
    while (reads < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    file.stop_reads();
    EXPECT_LT(reads, 64);
    EXPECT_EQ(file.stats().depth.depth, 0);
    EXPECT_EQ(file.stats().depth_ms, 0);
    EXPECT_EQ(file.stats().read_busy_ms, 0);
  }
  file.begin_reads(extents());
  read_some(file, 3);
  EXPECT_TRUE(file.stats().depth.why.starts_with("measured at start: 32 at once ")) << file.stats().depth.why;
  EXPECT_GT(file.stats().depth_ms, 0);
}

// The disk has reads under way for as long as they take, and not beside them.
TEST_P(SpillFileTest, CountsTheTimeWithReadsUnderWay) {
  const ScriptedFaults faults([](FileOp op, const std::string&, uint64_t, uint64_t) {
    if (op == FileOp::kRead) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return FileFault{};
  });
  SpillFile file(*device_, options(2));
  write_all(file);
  EXPECT_EQ(file.stats().read_busy_ms, 0);
  const auto start = std::chrono::steady_clock::now();
  file.begin_reads(extents());
  read_some(file, 10);
  const SpillStats some = file.stats();
  const double took = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GT(some.read_busy_ms, 20);  // half of the requests are begun while others are under way
  EXPECT_LE(some.read_busy_ms + some.ring_full_ms, took);
  // Once the ring is full nothing moves.
  const auto deadline = start + std::chrono::seconds(30);
  SpillStats last = file.stats();
  for (int still = 0; still < 10 && std::chrono::steady_clock::now() < deadline;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const SpillStats now = file.stats();
    still = now.read_bytes == last.read_bytes && now.read_busy_ms == last.read_busy_ms ? still + 1 : 0;
    last = now;
  }
  EXPECT_LT(std::chrono::steady_clock::now(), deadline);
  EXPECT_GE(last.ring_full_ms, 100);  // some of those times
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(file.stats().ring_full_ms, last.ring_full_ms + 10);  // and it lasts
}

// For measurements alone: what verifying costs is what it takes with, less what it takes without.
TEST_P(SpillFileTest, WithoutVerifyingNothingIsNoticed) {
  const ScriptedFaults faults({}, [](uint64_t, std::span<std::byte> data) { data[0] ^= std::byte{1}; });
  SpillFile file(*device_, options(3));
  write_all(file);
  file.set_verify(SpillVerify::kNothing);
  file.begin_reads(extents());
  for (int i = 0; i < 20; ++i) {
    ASSERT_NE(file.take(), nullptr);
    file.release(*copy_);
  }
  EXPECT_EQ(file.stats().checksum_ms, 0);
  file.set_verify(SpillVerify::kEveryRead);
  EXPECT_TRUE(has(error_of([&] {
                    for (int i = 0; i < 20; ++i) file.take(), file.release(*copy_);
                  }),
                  "are not what was written there"));
}

// Short reads and writes, and a system that wants to be asked again, change nothing.
TEST_P(SpillFileTest, ShortOnesAreTakenUpAgain) {
  std::atomic<int> calls = 0;
  const ScriptedFaults faults([&](FileOp op, const std::string&, uint64_t, uint64_t) {
    if (op != FileOp::kRead && op != FileOp::kWrite) return FileFault{};
    return ++calls % 5 == 0 ? FileFault{.error = EAGAIN} : FileFault{.at_most = 3 * File::kAlign};
  });
  SpillFile file(*device_, options(3));
  write_all(file);
  file.begin_reads(extents());
  read_some(file, 20);
  EXPECT_GT(calls.load(), 200);
}

}  // namespace
}  // namespace headrace
