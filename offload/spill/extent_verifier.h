// What was written in a file, block by block, as checksums; and a thread that compares with them what is read again,
// beside who keeps the disk busy: request by request as they come in, so that of an extent only the last request is
// still to be verified when all of it is there. Owns the checksums and the thread. Threads: one at a time for seal(),
// which is for no block that is verified meanwhile; add() and forget() from any. Nothing is allocated once it is made.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "offload/disk/file_queue.h"
#include "offload/host/fifo.h"
#include "offload/host/thread_annotations.h"
#include "offload/spill/extent.h"

namespace headrace {

struct ExtentVerifierOptions {
  std::string name;  // of the file, for errors
  uint64_t file_bytes = 0;
  SpillCut cut;
  uint64_t most_waiting = 0;  // requests that were added, and are not done
  // Of a block; pure. Empty: checksum().
  std::function<uint64_t(std::span<const std::byte>)> sum{};
  // On the verifier's thread, which holds no lock then: the request's bytes are those that were sealed, or not.
  std::function<void(const FileRequest&, std::exception_ptr error)> on_done{};
};

class ExtentVerifier {
 public:
  // Throws Error(kDoesNotFit): the thread cannot be started.
  explicit ExtentVerifier(const ExtentVerifierOptions& options);
  ~ExtentVerifier();  // what is not begun is forgotten
  ExtentVerifier(const ExtentVerifier&) = delete;
  ExtentVerifier& operator=(const ExtentVerifier&) = delete;

  void seal(uint64_t offset, std::span<const std::byte> data);
  void add(const FileRequest& read);
  // What is not begun is not done.
  void forget() noexcept;
  // And blocks until what was begun is. Not from on_done.
  void forget_and_wait() noexcept;
  double busy_ms() const { return static_cast<double>(busy_ns_) / 1e6; }

 private:
  void serve() noexcept;
  void verify(const FileRequest& read);
  uint64_t sum_of(std::span<const std::byte> block) const;

  const ExtentVerifierOptions options_;
  std::vector<uint64_t> sums_;  // by block
  std::atomic<int64_t> busy_ns_{0};
  Mutex mutex_;
  CondVar came_, quiet_;
  Fifo<FileRequest> waiting_ GUARDED_BY(mutex_);
  bool verifying_ GUARDED_BY(mutex_) = false, stop_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last
};

}  // namespace headrace
