// SpillFile: what is written is what is taken, again and again, whatever the slots and the body; what is not is an
// error that names file and offset; nothing is left behind.
#include "offload/spill_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/offload/backend_test.h"
#include "tests/support/file_faults.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::failing;
using testing::ScriptedFaults;

constexpr uint64_t kGrain = 64 * kKiB, kSlot = 4 * kGrain, kBytes = 9 * kSlot;

class SpillFileTest : public BackendTest {
 protected:
  // Spans of one to four grains that tile the file, not in order.
  static std::vector<SpillSpan> spans() {
    std::vector<SpillSpan> all;
    for (uint64_t offset = 0, grains = 1; offset < kBytes; offset += all.back().bytes, grains = grains % 4 + 1) {
      all.push_back({offset, std::min(grains * kGrain, kBytes - offset)});
    }
    for (size_t i = 0; i + 1 < all.size(); i += 3) std::swap(all[i], all[i + 1]);
    return all;
  }
  SpillFileOptions options(int slots, FileQueueBody body = FileQueueBody::kAuto) const {
    return {.folder = folder_.path(),
            .bytes = kBytes,
            .grain_bytes = kGrain,
            .slots = slots,
            .slot_bytes = kSlot,
            .body = body};
  }
  static std::byte value(uint64_t offset) { return static_cast<std::byte>(offset / kGrain * 5 + 3); }

  void write_all(SpillFile& file) {
    const DeviceBuffer from = device_->allocate(kBytes, "a test");
    const PinnedBuffer host = device_->allocate_pinned(kBytes, "a test");
    for (uint64_t at = 0; at < kBytes; at += kGrain) std::memset(host.data() + at, int(value(at)), kGrain);
    compute_->copy(from.data(), host.data(), kBytes, Link::kHostToDevice);
    compute_->synchronize();
    try {
      for (const SpillSpan& span : spans()) file.write(span, from.data() + span.offset, *copy_, "test");
      file.finish_writes();
    } catch (...) {
      copy_->synchronize();
      throw;
    }
  }
  // Takes `count` spans of the cycle; each is whole, and stays so until it has been copied.
  void read_some(SpillFile& file, int count) {
    const std::vector<SpillSpan> cycle = spans();
    const DeviceBuffer to = device_->allocate(kSlot, "a test");
    for (int i = 0; i < count; ++i) {
      const SpillSpan span = cycle[static_cast<size_t>(i) % cycle.size()];
      const std::byte* const data = file.take();
      ASSERT_NE(data, nullptr);
      copy_->copy(to.data(), data, span.bytes, Link::kHostToDevice);
      file.release(*copy_);
      const std::vector<std::byte> got = read(to);
      for (uint64_t at = 0; at < span.bytes; at += kGrain) {
        ASSERT_EQ(got[at], value(span.offset + at)) << i << " at " << at;
        ASSERT_EQ(got[at + kGrain - 1], value(span.offset + at)) << i << " at " << at;
      }
    }
  }
  template <typename Call>
  std::string error_of(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kStorage) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  TemporaryFolder folder_;
};
BACKEND_TEST(SpillFileTest);

TEST_P(SpillFileTest, WhatIsWrittenIsReadAgainAndAgain) {
  const uint64_t before = device_->host_mem().used_bytes();
  for (const FileQueueBody body : {FileQueueBody::kAuto, FileQueueBody::kThreads}) {
    for (const int slots : {1, 2, 7}) {
      SpillFile file(*device_, options(slots, body));
      EXPECT_EQ(device_->host_mem().used_bytes(), before + static_cast<uint64_t>(slots) * kSlot);
      write_all(file);
      file.begin_reads(spans());
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

// Reads are stopped with spans under way, waiting and taken; more is written; they begin anew with the first.
TEST_P(SpillFileTest, ReadsStopAndBeginAgain) {
  SpillFile file(*device_, options(3));
  write_all(file);
  for (const int count : {0, 1, 5, 14}) {
    file.begin_reads(spans());
    read_some(file, count);
    file.stop_reads();
    file.stop_reads();
    EXPECT_EQ(file.take(), nullptr);
    write_all(file);
  }
  file.begin_reads(spans());
  read_some(file, 20);
}

TEST_P(SpillFileTest, WhoWaitsIsToldThatReadsStop) {
  SpillFile file(*device_, options(2));
  write_all(file);
  const ScriptedFaults slow([](FileOp op, const std::string&, uint64_t, uint64_t) {
    if (op == FileOp::kRead) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return FileFault{};
  });
  file.begin_reads(spans());
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
    file.begin_reads(spans());
    read_some(file, count);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_P(SpillFileTest, AFlippedBitIsNeverTaken) {
  for (const FileQueueBody body : {FileQueueBody::kAuto, FileQueueBody::kThreads}) {
    SpillFile file(*device_, options(4, body));
    write_all(file);
    std::atomic<int> reads = 0;
    const ScriptedFaults faults({}, [&](uint64_t offset, std::span<std::byte> data) {
      if (offset <= 17 * kGrain && 17 * kGrain < offset + data.size() && ++reads == 2) {
        data[17 * kGrain - offset + 777] ^= std::byte{0x10};
      }
    });
    file.begin_reads(spans());
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
  SpillFile file(*device_, options(3));
  write_all(file);
  const ScriptedFaults faults(failing(FileOp::kRead, 4, EIO));
  file.begin_reads(spans());
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
    SpillFile file(*device_, options(slots));
    const ScriptedFaults faults(failing(FileOp::kWrite, 5, ENOSPC));
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

// Short reads and writes, and a system that wants to be asked again, change nothing.
TEST_P(SpillFileTest, ShortOnesAreTakenUpAgain) {
  std::atomic<int> calls = 0;
  const ScriptedFaults faults([&](FileOp op, const std::string&, uint64_t, uint64_t) {
    if (op != FileOp::kRead && op != FileOp::kWrite) return FileFault{};
    return ++calls % 5 == 0 ? FileFault{.error = EAGAIN} : FileFault{.at_most = 3 * File::kAlign};
  });
  SpillFile file(*device_, options(3));
  write_all(file);
  file.begin_reads(spans());
  read_some(file, 20);
  EXPECT_GT(calls.load(), 200);
}

}  // namespace
}  // namespace headrace
