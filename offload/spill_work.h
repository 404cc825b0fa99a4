// What a SpillFile is made of, for its two sources: spill_file.cc has what its callers call, spill_thread.cc what its
// threads do. Owns the file, the slots and the threads.
//
// Three kinds of threads and one mutex: who calls; thread_, which alone has disk_; the verifier's, which comes back in
// on_verified(), which takes mutex_. Whoever holds mutex_ may call add(), forget() and busy_ms() of the verifier, which
// holds no lock of its own when it calls back, and disk_.read_busy_ms(); never forget_and_wait(), which waits for that.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "offload/lateness.h"
#include "offload/span_queue.h"
#include "offload/span_verifier.h"
#include "offload/spill_file.h"
#include "offload/trace.h"

namespace headrace {

// Spans are numbered in the order in which they are written, or read; number n uses slot n % slots. A slot goes from
// who gives the span to the thread and, when it is done, back; of what is read, by way of the verifier.
class SpillFile::Work {
 public:
  Work(Device& device, const SpillFileOptions& options);
  ~Work() { quit(); }

  void write(SpillSpan to, const std::byte* src, Stream& out, TraceName what);
  void finish_writes();
  void begin_reads(std::vector<SpillSpan> cycle);
  const std::byte* take();
  void release(Stream& in);
  void stop_reads() noexcept;
  void set_verify(SpillVerify verify) { verify_ = verify; }
  void check();
  SpillStats stats() const;

 private:
  enum class Mode : uint8_t { kWriting, kReading, kStopping, kFailed, kQuitting };
  struct Slot {
    SpillSpan span;
    TraceName name;
    TraceSlice* slice = nullptr;
    std::unique_ptr<Event> copied;  // into the slot, when writing; out of it, when reading
    uint64_t requests = 0;          // that are not done: the thread's
    // With mutex_:
    uint64_t left = 0;                        // requests that are not done, or not verified
    int64_t arrived_ns = 0, verified_ns = 0;  // all of it; 0: not yet
    int64_t late_ns = 0;                      // of its release, then of its arrival
    bool complete = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  PinnedBuffer allocate();
  void quit() noexcept;
  Slot& slot(uint64_t number) { return slots_[number % slots_.size()]; }
  const Slot& slot(uint64_t number) const { return slots_[number % slots_.size()]; }
  std::byte* data(uint64_t number) const { return memory_.data() + number % slots_.size() * slot_stride_; }

  // ---- the thread's ----
  void serve() noexcept;
  bool step(Lock& lock);  // false: there is nothing to do
  bool write_step(Lock& lock);
  bool read_step(Lock& lock);
  void start(FileOp op, uint64_t number);
  void on_done(const FileRequest& request);
  void choose_depth(Lock& lock);
  ReadDepth measured_depth(double* trial_ms);

  // ---- the verifier's ----
  void on_verified(const FileRequest& request, std::exception_ptr error);

  // ---- with mutex_, on any of the two ----
  void hand_on(Slot& slot, int64_t now_ns);  // its span is there, and right
  void fail(std::exception_ptr error);
  int64_t waits_for_verifier_ns(int64_t now_ns) const;
  void end_wait(int64_t now_ns);
  static int64_t since(int64_t begin_ns, int64_t now_ns) { return begin_ns > 0 ? now_ns - begin_ns : 0; }

  Device& device_;
  const SpillFileOptions options_;
  const SpillCut cut_;
  const uint64_t slot_stride_;
  File file_;
  PinnedBuffer memory_;
  std::vector<Slot> slots_;
  std::vector<SpillSpan> cycle_;
  std::atomic<uint64_t> written_bytes_{0}, read_bytes_{0};
  std::atomic<SpillVerify> verify_{SpillVerify::kEveryRead};

  mutable std::mutex mutex_;
  std::condition_variable wake_, moved_;  // for the thread; for who waits for it
  Mode mode_ = Mode::kWriting;
  std::exception_ptr error_;
  ReadDepth chosen_;
  double depth_ms_ = 0;
  int64_t waits_since_ns_ = 0, take_wait_ns_ = 0, verify_wait_ns_ = 0;  // take(); 0: it does not wait
  Lateness lateness_;
  int64_t stands_since_ns_ = 0, stood_ns_ = 0;  // nothing is under way, as no slot is free; 0: not so
  // Numbers below these: written() or released, begun by the thread, done by it, taken.
  uint64_t given_ = 0, begun_ = 0, done_ = 0, taken_ = 0;
  SpanVerifier verifier_;
  SpanQueue disk_;
  std::thread thread_;  // last
};

}  // namespace headrace
