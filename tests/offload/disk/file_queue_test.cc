// The queue of a file, one body of tests over both of its bodies.
#include "offload/disk/file_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <tuple>

#include "cache/base.h"
#include "offload/disk/file_faults.h"
#include "tests/support/file_faults.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::failing;
using testing::ScriptedFaults;

constexpr uint64_t kPiece = 16 * kKiB;
constexpr int kPieces = 24;

bool uring_here() {
  const TemporaryFolder folder;
  const File file = File::temporary(folder.path(), FileCaching::kBuffered);
  int error = 0;
  return open_uring_queue(file, {.depth = 1}, &error) != nullptr;
}

std::vector<FileQueueBody> bodies() {
  if (uring_here()) return {FileQueueBody::kIoUring, FileQueueBody::kThreads};
  return {FileQueueBody::kThreads};
}

// Aligned memory with a guard page on either side.
class Guarded {
 public:
  explicit Guarded(uint64_t bytes)
      : bytes_(bytes), all_(static_cast<std::byte*>(std::aligned_alloc(File::kAlign, bytes + 2 * File::kAlign))) {
    std::fill(all_, all_ + bytes + 2 * File::kAlign, std::byte{0xA5});
  }
  ~Guarded() {
    for (uint64_t i = 0; i < File::kAlign; ++i) {
      CHECK(all_[i] == std::byte{0xA5} && all_[File::kAlign + bytes_ + i] == std::byte{0xA5}, "guard byte ", i);
    }
    std::free(all_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  std::byte* data() const { return all_ + File::kAlign; }
  std::span<std::byte> span() const { return {data(), bytes_}; }

 private:
  const uint64_t bytes_;
  std::byte* const all_;
};

class FileQueueTest : public ::testing::TestWithParam<std::tuple<FileQueueBody, FileCaching>> {
 protected:
  FileQueueTest() : file_(File::temporary(folder_.path(), std::get<1>(GetParam()))) {
    file_.allocate(kPieces * kPiece);
    fill(1);
  }
  std::unique_ptr<FileQueue> open(int depth, std::span<std::byte> memory = {}) {
    return FileQueue::open(file_, {.depth = depth, .body = std::get<0>(GetParam()), .memory = memory});
  }
  // What piece i holds by then.
  static std::byte value(int piece, int generation) { return static_cast<std::byte>(piece * 7 + generation); }
  void fill(int generation) {
    for (int i = 0; i < kPieces; ++i) std::memset(memory_.data() + i * kPiece, int(value(i, generation)), kPiece);
  }
  bool holds(int generation) const {
    for (int i = 0; i < kPieces; ++i) {
      const std::byte* const piece = memory_.data() + i * kPiece;
      const auto wrong = [&](std::byte byte) { return byte != value(i, generation); };
      if (std::any_of(piece, piece + kPiece, wrong)) return false;
    }
    return true;
  }
  FileRequest request(FileOp op, int piece) const {
    return {.op = op,
            .offset = static_cast<uint64_t>(piece) * kPiece,
            .data = memory_.data() + static_cast<uint64_t>(piece) * kPiece,
            .bytes = kPiece,
            .tag = static_cast<uint64_t>(piece)};
  }
  // All pieces through the queue, as many at a time as it takes; throws what fails.
  void all(FileOp op, FileQueue& queue) {
    std::set<uint64_t> tags;
    for (int next = 0; next < kPieces || queue.pending() > 0;) {
      if (next < kPieces && !queue.full()) {
        queue.submit(request(op, next++));
        continue;
      }
      const FileDone done = queue.wait();
      queue.check(done);
      EXPECT_TRUE(tags.insert(done.request.tag).second) << done.request.tag;
      EXPECT_EQ(done.request.bytes, kPiece);
    }
    EXPECT_EQ(tags.size(), static_cast<size_t>(kPieces));
  }
  std::string error_of(FileOp op, FileQueue& queue) {
    return testing_support::error_of(ExitCode::kStorage, [&] { all(op, queue); });
  }

  TemporaryFolder folder_;
  File file_;
  Guarded memory_{kPieces * kPiece};
};

INSTANTIATE_TEST_SUITE_P(Bodies, FileQueueTest,
                         ::testing::Combine(::testing::ValuesIn(bodies()),
                                            ::testing::Values(FileCaching::kDirect, FileCaching::kBuffered)),
                         [](const auto& given) {
                           return std::string(std::get<0>(given.param) == FileQueueBody::kIoUring ? "io_uring"
                                                                                                  : "threads") +
                                  (std::get<1>(given.param) == FileCaching::kDirect ? "_direct" : "_buffered");
                         });

TEST_P(FileQueueTest, WhatIsWrittenIsRead) {
  for (const int depth : {1, 3, kPieces, 100}) {
    for (const bool registered : {false, true}) {
      const std::unique_ptr<FileQueue> queue = open(depth, registered ? memory_.span() : std::span<std::byte>());
      EXPECT_EQ(queue->depth(), depth);
      fill(depth);
      all(FileOp::kWrite, *queue);
      fill(0);
      all(FileOp::kRead, *queue);
      EXPECT_TRUE(holds(depth)) << depth;
    }
  }
}

TEST_P(FileQueueTest, SaysWhichBodyItIs) {
  const std::string text = open(4)->describe();
  EXPECT_EQ(text, std::get<0>(GetParam()) == FileQueueBody::kIoUring ? "io_uring" : "4 threads");
}

// Ends of parts are whole pages of a direct file, any byte of another.
TEST_P(FileQueueTest, ShortOnesAreTakenUpAgain) {
  const std::unique_ptr<FileQueue> queue = open(5, memory_.span());
  const uint64_t part = file_.direct() ? File::kAlign : 1777;
  int calls = 0;
  const ScriptedFaults faults([&](FileOp, const std::string&, uint64_t, uint64_t bytes) {
    ++calls;
    EXPECT_GT(bytes, 0u);
    return FileFault{.error = calls % 4 == 0 ? EAGAIN : calls % 7 == 0 ? EINTR : 0, .at_most = part};
  });
  fill(9);
  all(FileOp::kWrite, *queue);
  fill(0);
  all(FileOp::kRead, *queue);
  EXPECT_TRUE(holds(9));
  EXPECT_GT(calls, 2 * kPieces * 4);
}

TEST_P(FileQueueTest, AnErrorIsThatOfItsRequestAlone) {
  const std::unique_ptr<FileQueue> queue = open(8);
  all(FileOp::kWrite, *queue);
  const ScriptedFaults faults([](FileOp, const std::string&, uint64_t offset, uint64_t) {
    return FileFault{.error = offset == 3 * kPiece ? EIO : 0};
  });
  for (int i = 0; i < 8; ++i) queue->submit(request(FileOp::kRead, i));
  int failed = 0;
  while (queue->pending() > 0) {
    const FileDone done = queue->wait();
    EXPECT_EQ(done.error, done.request.tag == 3 ? EIO : 0);
    failed += done.error != 0;
  }
  EXPECT_EQ(failed, 1);
  const std::string text = error_of(FileOp::kRead, *queue);
  EXPECT_NE(text.find("reading 16384 bytes at offset 49152 failed: Input/output error (EIO)"), std::string::npos)
      << text;
  EXPECT_NE(text.find(folder_.path()), std::string::npos) << text;
}

TEST_P(FileQueueTest, AFullDiskIsNamed) {
  const std::unique_ptr<FileQueue> queue = open(3);
  const ScriptedFaults faults(failing(FileOp::kWrite, 10, ENOSPC));
  const std::string text = error_of(FileOp::kWrite, *queue);
  EXPECT_NE(text.find("offset 163840 failed: No space left on device"), std::string::npos) << text;
}

TEST_P(FileQueueTest, TheEndOfTheFileIsAnError) {
  const std::unique_ptr<FileQueue> queue = open(2);
  FileRequest beyond = request(FileOp::kRead, 0);
  beyond.offset = (kPieces - 1) * kPiece;
  beyond.bytes = 2 * kPiece;
  queue->submit(beyond);
  EXPECT_EQ(queue->wait().error, ENODATA);
}

// What never comes to an end is an error, too.
TEST_P(FileQueueTest, TriesAreNotEndless) {
  const std::unique_ptr<FileQueue> queue = open(2);
  const ScriptedFaults faults(failing(FileOp::kRead, 0, EAGAIN));
  queue->submit(request(FileOp::kRead, 0));
  EXPECT_EQ(queue->wait().error, EAGAIN);
}

// io_uring may refuse to take a request. That is the request's result: it is not waited for, and the others go on.
TEST_P(FileQueueTest, ARefusedSubmissionIsItsRequestsError) {
  if (std::get<0>(GetParam()) != FileQueueBody::kIoUring) return;  // threads take every request
  const std::unique_ptr<FileQueue> queue = open(8, memory_.span());
  all(FileOp::kWrite, *queue);
  for (const int error : {EIO, ENOMEM, EAGAIN, EBUSY}) {
    const ScriptedFaults faults([&](FileOp op, const std::string&, uint64_t offset, uint64_t) {
      return FileFault{.error = op == FileOp::kSubmit && offset % (3 * kPiece) == 0 ? error : 0};
    });
    for (int i = 0; i < 8; ++i) queue->submit(request(FileOp::kRead, i));
    std::set<uint64_t> failed, done;
    while (queue->pending() > 0) {
      const FileDone each = queue->wait();
      EXPECT_TRUE(each.error == 0 || each.error == error) << each.error;
      (each.error == 0 ? done : failed).insert(each.request.tag);
    }
    EXPECT_EQ(failed, (std::set<uint64_t>{0, 3, 6}));
    EXPECT_EQ(done, (std::set<uint64_t>{1, 2, 4, 5, 7}));
  }
  fill(0);
  all(FileOp::kRead, *queue);  // nothing of what was refused is left in the ring
  EXPECT_TRUE(holds(1));
}

TEST_P(FileQueueTest, ASubmissionThatIsRefusedForAWhileSucceeds) {
  const std::unique_ptr<FileQueue> queue = open(5, memory_.span());
  int calls = 0;
  const ScriptedFaults faults([&](FileOp op, const std::string&, uint64_t, uint64_t) {
    return FileFault{.error = op == FileOp::kSubmit && ++calls % 5 != 0 ? EAGAIN : 0};
  });
  all(FileOp::kWrite, *queue);
  fill(0);
  all(FileOp::kRead, *queue);
  EXPECT_TRUE(holds(1));
}

TEST_P(FileQueueTest, FlippedBitsCanBeInjected) {
  const std::unique_ptr<FileQueue> queue = open(2);
  all(FileOp::kWrite, *queue);
  const ScriptedFaults faults({}, [](uint64_t offset, std::span<std::byte> data) {
    if (offset == kPiece) data[5] ^= std::byte{1};
  });
  all(FileOp::kRead, *queue);
  EXPECT_FALSE(holds(1));
  memory_.data()[kPiece + 5] ^= std::byte{1};
  EXPECT_TRUE(holds(1));
}

// A queue may go with requests under way: nothing writes into the memory afterwards.
TEST_P(FileQueueTest, MayGoWithRequestsUnderWay) {
  all(FileOp::kWrite, *open(8));
  for (int i = 0; i < 20; ++i) {
    std::unique_ptr<FileQueue> queue = open(kPieces, memory_.span());
    for (int piece = 0; piece < kPieces; ++piece) queue->submit(request(FileOp::kRead, piece));
    if (i % 2 == 0) queue->wait();
    queue.reset();
    fill(3);
    EXPECT_TRUE(holds(3));
  }
}

TEST(FileQueue, TakesWhatTheSystemAllows) {
  const TemporaryFolder folder;
  const File file = File::temporary(folder.path(), FileCaching::kBuffered);
  const std::string text = FileQueue::open(file, {.depth = 40})->describe();
  if (uring_here()) {
    EXPECT_EQ(text, "io_uring");
  } else {
    EXPECT_EQ(text.find("16 threads (io_uring: "), 0u) << text;
  }
  EXPECT_EQ(open_threads_queue(file, {.depth = 40}, "Operation not permitted")->describe(),
            "16 threads (io_uring: Operation not permitted)");
}

}  // namespace
}  // namespace headrace
