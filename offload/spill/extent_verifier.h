// The checksums of a file's blocks, and a thread that compares reads with them while the disk thread continues. It
// verifies every request as it arrives, so when an extent is complete only its last request is still to be verified.
// Owns the checksums and the thread. Threads: seal() from one at a time, and not for a block that is being verified;
// add() and forget() from any. Allocates only in its constructor.
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
  uint64_t most_waiting = 0;  // most requests that are added and not done
  // Computes the checksum of a block; pure. Empty: checksum().
  std::function<uint64_t(std::span<const std::byte>)> sum{};
  // Called on the verifier's thread, without a lock. `error` is null if the request's bytes are those that were sealed.
  std::function<void(const FileRequest&, std::exception_ptr error)> on_done{};
};

class ExtentVerifier {
 public:
  // Throws Error(kDoesNotFit): the thread cannot be started.
  explicit ExtentVerifier(const ExtentVerifierOptions& options);
  ~ExtentVerifier();  // forgets requests that have not begun
  ExtentVerifier(const ExtentVerifier&) = delete;
  ExtentVerifier& operator=(const ExtentVerifier&) = delete;

  void seal(uint64_t offset, std::span<const std::byte> data);
  void add(const FileRequest& read);
  // Drops requests that have not begun; on_done is not called for them.
  void forget() noexcept;
  // The same, and blocks until a begun request is done. Not from on_done.
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
