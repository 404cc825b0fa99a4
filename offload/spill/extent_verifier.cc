#include "offload/spill/extent_verifier.h"

#include "offload/host/checksum.h"
#include "offload/host/clock.h"
#include "offload/host/start_thread.h"

namespace headrace {

ExtentVerifier::ExtentVerifier(const ExtentVerifierOptions& options)
    : options_(options),
      sums_(static_cast<size_t>(options.cut.blocks(options.file_bytes))),
      waiting_(static_cast<size_t>(options.most_waiting)),
      thread_(start_thread("the thread that verifies what is read from disk", [this] { serve(); })) {}

ExtentVerifier::~ExtentVerifier() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  came_.notify_one();
  thread_.join();
}

uint64_t ExtentVerifier::sum_of(std::span<const std::byte> block) const {
  return options_.sum ? options_.sum(block) : checksum(block);
}

void ExtentVerifier::seal(uint64_t offset, std::span<const std::byte> data) {
  for (uint64_t done = 0; done < data.size();) {
    const uint64_t bytes = options_.cut.block_bytes(offset + done);
    sums_[options_.cut.block(offset + done)] = sum_of(data.subspan(done, bytes));
    done += bytes;
  }
}

void ExtentVerifier::add(const FileRequest& read) {
  const MutexLock lock(mutex_);
  waiting_.push(read);
  came_.notify_one();
}

void ExtentVerifier::forget() noexcept {
  const MutexLock lock(mutex_);
  waiting_.clear();
}

void ExtentVerifier::forget_and_wait() noexcept {
  const MutexLock lock(mutex_);
  waiting_.clear();
  while (verifying_) quiet_.wait(mutex_);
}

// Verifies in order of arrival: take() usually waits for the extent that arrived first.
void ExtentVerifier::serve() noexcept {
  const MutexLock lock(mutex_);
  for (;;) {
    while (!stop_ && waiting_.empty()) came_.wait(mutex_);
    if (stop_) return;
    const FileRequest read = waiting_.pop();
    verifying_ = true;
    {
      const MutexUnlock unlock(mutex_);
      std::exception_ptr error;
      try {
        verify(read);
      } catch (...) {
        error = std::current_exception();
      }
      options_.on_done(read, error);
    }
    verifying_ = false;
    quiet_.notify_all();
  }
}

void ExtentVerifier::verify(const FileRequest& read) {
  const int64_t start = host_now_ns();
  const std::span<const std::byte> data(read.data, read.bytes);
  for (uint64_t done = 0; done < read.bytes;) {
    const uint64_t offset = read.offset + done, bytes = options_.cut.block_bytes(offset);
    if (sum_of(data.subspan(done, bytes)) != sums_[options_.cut.block(offset)]) {
      throw_error(
          ExitCode::kStorage, options_.name,
          str("the ", bytes, " bytes at offset ", offset, " are not what was written there (their checksum)"),
          "The disk or the memory may be failing: spill to another disk (--spill), and see the system's log (dmesg).");
    }
    done += bytes;
  }
  busy_ns_ += host_now_ns() - start;
}

}  // namespace headrace
