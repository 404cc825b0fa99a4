// What a SpillFile is made of, for its two sources: spill_file.cc has what its callers call, spill_thread.cc what its
// threads do. Owns the file, the slots and the threads.
//
// Three kinds of threads and one mutex: who calls; thread_, which alone has disk_; the verifier's, which comes back in
// on_verified(), which takes mutex_. Whoever holds mutex_ may call add(), forget() and busy_ms() of the verifier, which
// holds no lock of its own when it calls back, and disk_.read_busy_ms(); never forget_and_wait(), which waits for that.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "offload/device/trace.h"
#include "offload/host/thread_annotations.h"
#include "offload/spill/extent_queue.h"
#include "offload/spill/extent_verifier.h"
#include "offload/spill/lateness.h"
#include "offload/spill/spill_file.h"

namespace headrace {

// Spans are numbered in the order in which they are written, or read; number n uses slot n % slots. A slot goes from
// who gives the extent to the thread and, when it is done, back; of what is read, by way of the verifier.
class SpillFile::Work {
 public:
  Work(Device& device, const SpillFileOptions& options);
  ~Work() { quit(); }

  void write(Extent to, const std::byte* src, Stream& out, TraceName what);
  void finish_writes();
  void begin_reads(std::vector<Extent> cycle);
  const std::byte* take();
  void release(Stream& in);
  void stop_reads() noexcept;
  void set_verify(SpillVerify verify) { verify_ = verify; }
  void check();
  SpillStats stats() const;

 private:
  enum class Mode : uint8_t { kWriting, kReading, kStopping, kFailed, kQuitting };
  struct Slot {
    Extent extent;
    TraceName name;
    TraceSlice* slice = nullptr;
    std::unique_ptr<Event> copied;  // into the slot, when writing; out of it, when reading
    uint64_t requests = 0;          // that are not done: the thread's
  };
  // Of the extent in a slot.
  struct SlotState {
    uint64_t left = 0;                        // requests that are not done, or not verified
    int64_t arrived_ns = 0, verified_ns = 0;  // all of it; 0: not yet
    int64_t late_ns = 0;                      // of its release, then of its arrival
    bool complete = false;
  };

  PinnedBuffer allocate();
  void quit() noexcept;
  Slot& slot(uint64_t number) { return slots_[number % slots_.size()]; }
  SlotState& state(uint64_t number) REQUIRES(mutex_) { return states_[number % states_.size()]; }
  std::byte* data(uint64_t number) const { return memory_.data() + number % slots_.size() * slot_stride_; }

  // ---- the thread's ----
  void serve() noexcept;
  // False: there is nothing to do. They unlock mutex_ while they wait for the disk.
  bool step() REQUIRES(mutex_);
  bool write_step() REQUIRES(mutex_);
  bool read_step() REQUIRES(mutex_);
  void start(FileOp op, uint64_t number);
  void on_done(const FileRequest& request);
  void choose_depth() REQUIRES(mutex_);
  ReadDepth measured_depth(double* trial_ms);

  // ---- the verifier's ----
  void on_verified(const FileRequest& request, std::exception_ptr error);

  // ---- with mutex_, on any of the two ----
  void hand_on(SlotState& extent, int64_t now_ns) REQUIRES(mutex_);  // it is there, and right
  void fail(std::exception_ptr error) REQUIRES(mutex_);
  int64_t waits_for_verifier_ns(int64_t now_ns) const REQUIRES(mutex_);
  void end_wait(int64_t now_ns) REQUIRES(mutex_);
  static int64_t since(int64_t begin_ns, int64_t now_ns) { return begin_ns > 0 ? now_ns - begin_ns : 0; }

  Device& device_;
  const SpillFileOptions options_;
  const SpillCut cut_;
  const uint64_t slot_stride_;
  File file_;
  PinnedBuffer memory_;
  std::vector<Slot> slots_;
  std::vector<Extent> cycle_;
  std::atomic<uint64_t> written_bytes_{0}, read_bytes_{0};
  std::atomic<SpillVerify> verify_{SpillVerify::kEveryRead};

  mutable Mutex mutex_;
  CondVar wake_, moved_;                              // for the thread; for who waits for it
  std::vector<SlotState> states_ GUARDED_BY(mutex_);  // by slot
  Mode mode_ GUARDED_BY(mutex_) = Mode::kWriting;
  std::exception_ptr error_ GUARDED_BY(mutex_);
  ReadDepth chosen_ GUARDED_BY(mutex_);
  double depth_ms_ GUARDED_BY(mutex_) = 0;
  // Of take(); 0: it does not wait.
  int64_t waits_since_ns_ GUARDED_BY(mutex_) = 0, take_wait_ns_ GUARDED_BY(mutex_) = 0;
  int64_t verify_wait_ns_ GUARDED_BY(mutex_) = 0;
  Lateness lateness_ GUARDED_BY(mutex_);
  // Nothing is under way, as no slot is free; 0: not so.
  int64_t stands_since_ns_ GUARDED_BY(mutex_) = 0, stood_ns_ GUARDED_BY(mutex_) = 0;
  // Numbers below these: written() or released, begun by the thread, done by it, taken.
  uint64_t given_ GUARDED_BY(mutex_) = 0, begun_ GUARDED_BY(mutex_) = 0;
  uint64_t done_ GUARDED_BY(mutex_) = 0, taken_ GUARDED_BY(mutex_) = 0;
  ExtentVerifier verifier_;
  ExtentQueue disk_;
  std::thread thread_;  // last
};

}  // namespace headrace
