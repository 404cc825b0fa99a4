// The body over io_uring (liburing). One system call submits a request. The file and the memory are registered, so the
// kernel does not look them up for each request.
#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "cache/base.h"
#include "offload/disk/file_faults.h"
#include "offload/disk/file_queue.h"

namespace headrace {
namespace {

constexpr uint64_t kBufferBytes = 512 * kMiB;  // of one registered buffer: the kernel takes up to 1 GiB
constexpr size_t kMaxBuffers = 64;

class UringQueue final : public FileQueue {
 public:
  UringQueue(const File& file, const io_uring& ring, const FileQueueOptions& options)
      : FileQueue(file, options.depth), ring_(ring), memory_(options.memory) {
    const int fd = file.fd();
    registered_file_ = io_uring_register_files(&ring_, &fd, 1) == 0;
    register_memory();
  }
  ~UringQueue() override {
    while (started_ > 0) next();  // the kernel must have finished with the memory
    io_uring_queue_exit(&ring_);
  }

  std::string describe() const override { return "io_uring"; }
  int concurrency() const override { return depth(); }

 protected:
  int start(int slot, const FileRequest& part) override;
  Result next() override;

 private:
  void register_memory();
  int submit(const FileRequest& part);
  void take_back();
  // The registered buffer that holds all of the part, or -1.
  int buffer_of(const FileRequest& part) const;

  io_uring ring_;
  const std::span<std::byte> memory_;
  bool registered_file_ = false, registered_memory_ = false;
  int started_ = 0;
};

// If the limit on locked memory is too low, requests use unregistered memory.
void UringQueue::register_memory() {
  const size_t count = (memory_.size() + kBufferBytes - 1) / kBufferBytes;
  if (count == 0 || count > kMaxBuffers) return;
  std::array<iovec, kMaxBuffers> buffers{};
  for (size_t i = 0; i < count; ++i) {
    const std::span<std::byte> part =
        memory_.subspan(i * kBufferBytes).first(std::min<size_t>(kBufferBytes, memory_.size() - i * kBufferBytes));
    buffers[i] = {.iov_base = part.data(), .iov_len = part.size()};
  }
  registered_memory_ = io_uring_register_buffers(&ring_, buffers.data(), static_cast<unsigned>(count)) == 0;
}

int UringQueue::buffer_of(const FileRequest& part) const {
  if (!registered_memory_ || part.data < memory_.data()) return -1;
  const auto first = static_cast<uint64_t>(part.data - memory_.data());
  if (first >= memory_.size() || part.bytes > memory_.size() - first) return -1;
  const uint64_t buffer = first / kBufferBytes;
  return (first + part.bytes - 1) / kBufferBytes == buffer ? static_cast<int>(buffer) : -1;
}

int UringQueue::start(int slot, const FileRequest& part) {
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  CHECK(sqe != nullptr);  // the queue has as many entries as its depth
  const int fd = registered_file_ ? 0 : file_.fd(), buffer = buffer_of(part);
  const auto bytes = static_cast<unsigned>(std::min<uint64_t>(part.bytes, kGiB));
  if (part.op == FileOp::kRead) {
    if (buffer >= 0) {
      io_uring_prep_read_fixed(sqe, fd, part.data, bytes, part.offset, buffer);
    } else {
      io_uring_prep_read(sqe, fd, part.data, bytes, part.offset);
    }
  } else if (buffer >= 0) {
    io_uring_prep_write_fixed(sqe, fd, part.data, bytes, part.offset, buffer);
  } else {
    io_uring_prep_write(sqe, fd, part.data, bytes, part.offset);
  }
  if (registered_file_) sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(sqe, static_cast<uint64_t>(slot));
  const int submitted = submit(part);
  if (submitted > 0) {
    ++started_;
    return 0;
  }
  take_back();
  return submitted < 0 ? -submitted : EAGAIN;
}

int UringQueue::submit(const FileRequest& part) {
  if (FileFaults* const faults = file_faults()) [[unlikely]] {
    const int error = faults->before(FileOp::kSubmit, file_.path(), part.offset, part.bytes).error;
    if (error != 0) return -error;
  }
  return io_uring_submit(&ring_);
}

// Removes the last entry, which the kernel has not taken: the next submission would include it.
void UringQueue::take_back() {
  io_uring_sq& sq = ring_.sq;
  --sq.sqe_tail;
  if (sq.sqe_head == sq.sqe_tail) return;  // the kernel has not been shown it
  sq.sqe_head = sq.sqe_tail;
  io_uring_smp_store_release(sq.ktail, *sq.ktail - 1);
}

FileQueue::Result UringQueue::next() {
  io_uring_cqe* cqe = nullptr;
  int status = -EINTR;
  while (status == -EINTR) status = io_uring_wait_cqe(&ring_, &cqe);  // each call blocks
  CHECK(status == 0, std::strerror(-status));  // the kernel still writes to the memory: nothing could follow
  const Result result{.slot = static_cast<int>(io_uring_cqe_get_data64(cqe)), .value = cqe->res};
  io_uring_cqe_seen(&ring_, cqe);
  --started_;
  return result;
}

}  // namespace

std::unique_ptr<FileQueue> open_uring_queue(const File& file, const FileQueueOptions& options, int* error) {
  io_uring ring{};
  const int status = io_uring_queue_init(static_cast<unsigned>(options.depth), &ring, 0);
  *error = -status;
  if (status < 0) return nullptr;
  return std::make_unique<UringQueue>(file, ring, options);
}

}  // namespace headrace
