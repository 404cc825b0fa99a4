// Data that memory cannot hold, in one unnamed file of a fixed size (docs/design.md, section 9). It is written once,
// from device memory, and read repeatedly ahead of its reader, both through one ring of pinned slots. Checksums cover
// the whole file, computed on write and verified on every read: take() returns the bytes that were written or throws an
// Error(kStorage) that names the wrong ones.
//
// Owns the file, the slots, the thread that keeps the disk busy (extent_queue) and the one that verifies beside it
// (extent_verifier). Threads: one writes; one takes and releases, which may be another than the one that begins and
// stops the reads. Nothing is allocated by write(), take() and release().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "cache/base.h"
#include "offload/device/device.h"
#include "offload/device/trace.h"
#include "offload/host/thread_annotations.h"
#include "offload/spill/extent.h"
#include "offload/spill/extent_queue.h"
#include "offload/spill/extent_verifier.h"
#include "offload/spill/spill_file_options.h"

namespace headrace {

// Extents are numbered in the order in which they are written or read; number n uses slot n % slots. The caller passes
// a slot to the disk thread, which returns it when its requests are done. The slot of a read passes through the
// verifier.
//
// Three threads share one mutex: the caller, the disk thread, the verifier. Only the disk thread (thread_) uses disk_.
// The verifier calls on_verified(), which takes mutex_; it holds no lock of its own then. A thread that holds mutex_
// may call add(), forget() and busy_ms() of the verifier and disk_.read_busy_ms(), but not forget_and_wait(), which
// waits for on_verified().
class SpillFile {
 public:
  // Allocates the disk space, and the slots from the device's host memory. Throws Error: kStorage, kDoesNotFit.
  SpillFile(Device& device, const SpillFileOptions& options);
  ~SpillFile() { quit(); }
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Extents are whole grains.

  // ---- writing ----
  // Enqueues on `out` the copy of the extent from `src`, device memory, then writes it. Blocks while all slots wait for
  // the disk. Throws earlier failures. REQUIRES: no reads.
  void write(Extent to, const std::byte* src, Stream& out, TraceName what);
  // Blocks until all data is in the file.
  void finish_writes();

  // ---- reading ----
  enum class Repeat : uint8_t { kNo, kYes };
  // Starts to read the extents in this order, once or repeatedly. REQUIRES: finish_writes().
  void begin_reads(std::vector<Extent> cycle, Repeat repeat = Repeat::kYes);
  // The next extent in pinned memory, arrived and verified, valid until release(); null once the reads are stopped.
  // REQUIRES: there is a next one.
  const std::byte* take();
  // Call once all work that reads the last taken extent is enqueued on `in`; its slot is refilled after that work.
  void release(Stream& in);
  // Makes take() return; blocks until the disk is idle. Data that `in` still reads stays until the next begin_reads().
  void stop_reads() noexcept;

  // Throws the Error of an earlier failure; never blocks.
  void check();
  SpillStats stats() const;

 private:
  enum class Mode : uint8_t { kWriting, kReading, kStopping, kFailed, kQuitting };
  struct Slot {
    Extent extent;
    TraceName name;
    TraceSlice* slice = nullptr;
    std::unique_ptr<Event> copied;  // writing: the copy into the slot; reading: the copy out of it
    uint64_t requests = 0;          // that are not done; for the disk thread
  };
  // The state of the extent in a slot.
  struct SlotState {
    uint64_t left = 0;                        // requests that are not done, or not verified
    int64_t arrived_ns = 0, verified_ns = 0;  // when its last request was; 0: not yet
    bool complete = false;
  };

  PinnedBuffer allocate();
  void quit() noexcept;
  Slot& slot(uint64_t number) { return slots_[number % slots_.size()]; }
  SlotState& state(uint64_t number) REQUIRES(mutex_) { return states_[number % states_.size()]; }
  std::byte* data(uint64_t number) const { return memory_.data() + number % slots_.size() * slot_stride_; }

  // ---- on the disk thread ----
  void serve() noexcept;
  // Return false if there is nothing to do; unlock mutex_ while they wait for the disk.
  bool step() REQUIRES(mutex_);
  bool write_step() REQUIRES(mutex_);
  bool read_step() REQUIRES(mutex_);
  void start(FileOp op, uint64_t number);
  void on_done(const FileRequest& request);

  // ---- on the verifier's thread ----
  void on_verified(const FileRequest& request, std::exception_ptr error);

  // ---- on either of the two ----
  void hand_on(SlotState& extent, int64_t now_ns) REQUIRES(mutex_);  // the extent is written, or read and verified
  void fail(std::exception_ptr error) REQUIRES(mutex_);
  int64_t waits_for_verifier_ns(int64_t now_ns) const REQUIRES(mutex_);
  void end_wait(int64_t now_ns) REQUIRES(mutex_);

  Device& device_;
  const SpillFileOptions options_;
  const SpillCut cut_;
  const uint64_t slot_stride_;
  File file_;
  PinnedBuffer memory_;
  std::vector<Slot> slots_;
  std::vector<Extent> cycle_;
  std::atomic<uint64_t> written_bytes_{0}, read_bytes_{0};

  mutable Mutex mutex_;
  CondVar wake_, moved_;                              // wake the disk thread; wake threads that wait for it
  std::vector<SlotState> states_ GUARDED_BY(mutex_);  // by slot
  Mode mode_ GUARDED_BY(mutex_) = Mode::kWriting;
  std::exception_ptr error_ GUARDED_BY(mutex_);
  int64_t waits_since_ns_ GUARDED_BY(mutex_) = 0;  // when take() began to wait; 0: it does not wait
  int64_t verify_wait_ns_ GUARDED_BY(mutex_) = 0;
  // Extents with numbers below these are: given by write() or release(), begun by the disk thread, done, taken.
  uint64_t given_ GUARDED_BY(mutex_) = 0, begun_ GUARDED_BY(mutex_) = 0;
  uint64_t done_ GUARDED_BY(mutex_) = 0, taken_ GUARDED_BY(mutex_) = 0;
  uint64_t reads_ GUARDED_BY(mutex_) = 0;  // extents that are to be read
  ExtentVerifier verifier_;
  ExtentQueue disk_;
  std::thread thread_;  // last
};

}  // namespace headrace
