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

bool uring_here(const std::string& folder) {
  const File file = File::temporary(folder, FileCaching::kBuffered);
  int error = 0;
  return open_uring_queue(file, {.depth = 1}, &error) != nullptr;
}

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

// Whatever io_uring refuses, in whichever operation, ends as an error of the caller, who may be waiting.
TEST_P(SpillFileTest, ARefusedSubmissionIsAnErrorNotAWait) {
  if (!uring_here(folder_.path())) GTEST_SKIP() << "the system does not allow io_uring";
  for (const int error : {EIO, EAGAIN}) {
    for (const int64_t nth : {0, 3, 30, 45, 80}) {
      SCOPED_TRACE(str("error ", error, " from submission ", nth));
      const ScriptedFaults faults(failing(FileOp::kSubmit, nth, error));
      SpillFile file(*device_, options(3, FileQueueBody::kIoUring));
      const std::string text = error_of([&] {
        write_all(file);
        file.begin_reads(extents());
        while (file.take() != nullptr) file.release(*copy_);
      });
      EXPECT_TRUE(has(text, "bytes at offset ")) << text;
      EXPECT_TRUE(has(text, error == EIO ? "(EIO)" : "(EAGAIN)")) << text;
    }
  }
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

// The depth is a limit: what the ring has no room for, and what the threads do not take up, is not under way.
TEST_P(SpillFileTest, SaysHowManyReadsThereAreAtMost) {
  const auto at_most = [&](int slots, FileQueueBody body, int depth) {
    SpillFileOptions wanted = options(slots, body);
    wanted.depth = depth;
    SpillFile file(*device_, wanted);
    write_all(file);
    file.begin_reads(extents());
    read_some(file, 3);
    return file.stats().reads_at_once;
  };
  EXPECT_EQ(at_most(2, FileQueueBody::kAuto, kReadDepth), 2);
  EXPECT_EQ(at_most(2, FileQueueBody::kThreads, kReadDepth), 2);
  EXPECT_EQ(at_most(64, FileQueueBody::kThreads, kReadDepth), 16);
  EXPECT_EQ(at_most(64, FileQueueBody::kAuto, 3), 3);
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
  EXPECT_LE(some.read_busy_ms, took);
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
