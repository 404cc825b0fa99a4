#include "offload/spill_file.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "cache/base.h"
#include "offload/checksum.h"
#include "offload/trace.h"

namespace headrace {
namespace {

// Measured with fio --direct=1 --ioengine=io_uring --bs=1m on a virtual disk: 4 under way read 1.0 GB/s, 16 and 32 read
// 1.2 to 1.3, 64 read no more; requests of 2 MiB read less. `headrace profile --disk` has the table of a disk.
constexpr uint64_t kRequestBytes = kMiB;
constexpr int kDeepest = kTrialDepths.back();

using Clock = std::chrono::steady_clock;

int64_t now_ns() { return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

}  // namespace

// Spans are numbered in the order in which they are written, or read; number n uses slot n % slots. A slot goes from
// who gives the span to the thread and, when it is done, back.
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
    int requests = 0;               // under way
    bool complete = false;          // with mutex_
  };
  using Lock = std::unique_lock<std::mutex>;

  void quit() noexcept;
  Slot& slot(uint64_t number) { return slots_[number % slots_.size()]; }
  std::byte* data(uint64_t number) const { return memory_.data() + number % slots_.size() * slot_stride_; }

  // ---- the thread's ----
  void serve() noexcept;
  bool step(Lock& lock);  // false: there is nothing to do
  bool write_step(Lock& lock);
  bool read_step(Lock& lock);
  void start(FileOp op, uint64_t number);
  void submit(const FileRequest& request);
  FileDone next_done();
  void reap();
  void choose_depth(Lock& lock);
  ReadDepth measured_depth(double* trial_ms);
  void seal(uint64_t number);
  void hand_on(Slot& slot);  // with mutex_: its span is there, and right
  void fail(Lock& lock, std::exception_ptr error);

  // ---- the verifier's ----
  void verify_arrivals() noexcept;
  void verify(const Slot& slot, std::span<const std::byte> data);
  void drain_queue() noexcept;

  Device& device_;
  const SpillFileOptions options_;
  const uint64_t slot_stride_;
  File file_;
  PinnedBuffer memory_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> sums_;  // by grain
  std::unique_ptr<FileQueue> queue_;
  std::vector<SpillSpan> cycle_;
  std::atomic<uint64_t> written_bytes_{0}, read_bytes_{0}, checksum_ns_{0};
  std::atomic<SpillVerify> verify_{SpillVerify::kEveryRead};
  int depth_ = kLeastReadDepth;  // of requests: the thread's

  mutable std::mutex mutex_;
  std::condition_variable wake_, moved_, arrived_;  // for the thread; for who waits for it; for the verifier
  std::vector<Slot*> arrivals_;                     // read, and not verified yet
  bool verifying_ = false;
  Mode mode_ = Mode::kWriting;
  std::exception_ptr error_;
  ReadDepth chosen_;
  double depth_ms_ = 0;
  int64_t busy_ns_ = 0, busy_since_ns_ = 0;  // with reads under way; 0: none are
  // Numbers below these: written() or released, begun by the thread, done by it, taken.
  uint64_t given_ = 0, begun_ = 0, done_ = 0, taken_ = 0;
  std::thread thread_, verifier_;  // last
};

SpillFile::Work::Work(Device& device, const SpillFileOptions& options)
    : device_(device),
      options_(options),
      slot_stride_(whole_pages(options.slot_bytes)),
      file_(File::temporary(options.folder, FileCaching::kDirect)) {
  CHECK(options.slots > 0 && options.grain_bytes > 0 && options.grain_bytes % File::kAlign == 0 &&
            options.bytes % options.grain_bytes == 0,
        "slots=", options.slots, " grain_bytes=", options.grain_bytes, " bytes=", options.bytes);
  file_.allocate(options.bytes);
  sums_.resize(static_cast<size_t>(options.bytes / options.grain_bytes));
  memory_ =
      device.allocate_pinned(static_cast<uint64_t>(options.slots) * slot_stride_, "the ring between disk and link");
  slots_.resize(static_cast<size_t>(options.slots));
  for (Slot& each : slots_) each.copied = device.make_event();
  arrivals_.reserve(slots_.size());
  queue_ = FileQueue::open(file_, {.depth = std::max(kDeepest, options.depth.depth),
                                   .body = options.body,
                                   .memory = {memory_.data(), memory_.bytes()}});
  try {
    thread_ = std::thread([this] { serve(); });
    verifier_ = std::thread([this] { verify_arrivals(); });
  } catch (...) {  // the system has no more
    quit();
    throw;
  }
}

void SpillFile::Work::quit() noexcept {
  {
    const std::lock_guard lock(mutex_);
    mode_ = Mode::kQuitting;
  }
  wake_.notify_all();
  arrived_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (verifier_.joinable()) verifier_.join();
}

// ---- who writes ----

void SpillFile::Work::write(SpillSpan to, const std::byte* src, Stream& out, TraceName what) {
  CHECK(to.bytes > 0 && to.bytes <= options_.slot_bytes && to.offset % options_.grain_bytes == 0 &&
            to.bytes % options_.grain_bytes == 0 && to.offset + to.bytes <= options_.bytes,
        "offset ", to.offset, " bytes ", to.bytes);
  uint64_t number = 0;
  {
    Lock lock(mutex_);
    moved_.wait(lock, [&] { return given_ - done_ < slots_.size() || error_ != nullptr; });
    if (error_ != nullptr) std::rethrow_exception(error_);
    CHECK(mode_ == Mode::kWriting);
    number = given_;
  }
  Slot& mine = slot(number);
  mine.span = to;
  mine.name = what;
  out.copy(data(number), src, to.bytes, Link::kDeviceToHost, what);
  out.record(*mine.copied);
  const std::lock_guard lock(mutex_);
  ++given_;
  wake_.notify_one();
}

void SpillFile::Work::finish_writes() {
  Lock lock(mutex_);
  moved_.wait(lock, [&] { return mode_ != Mode::kWriting || done_ == given_; });
  if (error_ != nullptr) std::rethrow_exception(error_);
}

// ---- who reads ----

void SpillFile::Work::begin_reads(std::vector<SpillSpan> cycle) {
  for (const SpillSpan& span : cycle) CHECK(span.bytes > 0 && span.bytes <= options_.slot_bytes, "bytes ", span.bytes);
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  CHECK(mode_ == Mode::kWriting && done_ == given_ && !cycle.empty());
  cycle_ = std::move(cycle);
  given_ = begun_ = done_ = taken_ = 0;
  mode_ = Mode::kReading;
  wake_.notify_one();
}

const std::byte* SpillFile::Work::take() {
  Lock lock(mutex_);
  moved_.wait(lock, [&] { return mode_ != Mode::kReading || taken_ < done_; });
  if (error_ != nullptr) std::rethrow_exception(error_);
  return mode_ == Mode::kReading ? data(taken_++) : nullptr;
}

void SpillFile::Work::release(Stream& in) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (mode_ != Mode::kReading) return;
    CHECK(given_ < taken_, "released ", given_, " taken ", taken_);
    number = given_;
  }
  in.record(*slot(number).copied);
  const std::lock_guard lock(mutex_);
  if (mode_ == Mode::kReading) ++given_;
  wake_.notify_one();
}

void SpillFile::Work::stop_reads() noexcept {
  Lock lock(mutex_);
  if (mode_ != Mode::kReading) return;
  mode_ = Mode::kStopping;
  moved_.notify_all();
  wake_.notify_one();
  moved_.wait(lock, [&] { return mode_ != Mode::kStopping; });
}

void SpillFile::Work::check() {
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

SpillStats SpillFile::Work::stats() const {
  const uint64_t ring_requests = slots_.size() * ((options_.slot_bytes + kRequestBytes - 1) / kRequestBytes);
  const std::lock_guard lock(mutex_);
  const int64_t busy = busy_ns_ + (busy_since_ns_ > 0 ? now_ns() - busy_since_ns_ : 0);
  return {.file_bytes = options_.bytes,
          .written_bytes = written_bytes_,
          .read_bytes = read_bytes_,
          .checksum_ms = static_cast<double>(checksum_ns_) / 1e6,
          .read_busy_ms = static_cast<double>(busy) / 1e6,
          .how = queue_->describe() + (file_.direct() ? ", O_DIRECT" : ", through the page cache"),
          .depth = chosen_,
          .reads_at_once =
              static_cast<int>(std::min<uint64_t>(std::min(chosen_.depth, queue_->concurrency()), ring_requests)),
          .depth_ms = depth_ms_};
}

// ---- the thread ----

void SpillFile::Work::serve() noexcept {
  Lock lock(mutex_);
  while (mode_ != Mode::kQuitting) {
    try {
      if (!step(lock)) wake_.wait(lock);
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      if (lock.owns_lock()) lock.unlock();
      drain_queue();
      lock.lock();
      fail(lock, error);
    }
  }
  lock.unlock();
  drain_queue();
}

// The first error is the one that counts.
void SpillFile::Work::fail(Lock&, std::exception_ptr error) {
  if (error_ == nullptr) error_ = std::move(error);
  if (mode_ != Mode::kQuitting) mode_ = Mode::kFailed;
  arrivals_.clear();
  moved_.notify_all();
  wake_.notify_all();
}

bool SpillFile::Work::step(Lock& lock) {
  if (mode_ == Mode::kWriting) return write_step(lock);
  if (mode_ == Mode::kReading && chosen_.depth == 0) {
    choose_depth(lock);
    return true;  // the lock was let go: the mode may be another by now, and its call has not been waited for
  }
  if (mode_ == Mode::kReading) return read_step(lock);
  const bool failed = mode_ == Mode::kFailed && queue_->pending() > 0;  // the verifier has found it
  if (mode_ != Mode::kStopping && !failed) return false;
  lock.unlock();
  drain_queue();
  lock.lock();
  if (failed) return true;
  arrivals_.clear();
  moved_.wait(lock, [&] { return !verifying_; });
  given_ = begun_ = done_ = taken_ = 0;
  for (Slot& each : slots_) each.complete = false;
  if (mode_ == Mode::kStopping) mode_ = Mode::kWriting;
  moved_.notify_all();
  return true;
}

bool SpillFile::Work::write_step(Lock& lock) {
  if (begun_ == given_ && queue_->pending() == 0) return false;
  const bool fresh = begun_ < given_;
  const uint64_t number = begun_;
  lock.unlock();
  if (fresh) {
    slot(number).copied->synchronize();
    seal(number);
    start(FileOp::kWrite, number);
  } else {
    reap();
  }
  lock.lock();
  if (fresh) ++begun_;
  return true;
}

// As many spans as there are slots are under way, or wait to be taken. What has come in is not to wait for a slot.
bool SpillFile::Work::read_step(Lock& lock) {
  const uint64_t number = begun_, slots = slots_.size();
  const bool first_use = number < slots, free = number<given_ + slots, pending = queue_->pending()> 0;
  if (!free && !pending) return false;
  lock.unlock();
  const bool fresh = free && (first_use || !pending || slot(number).copied->done());
  if (fresh) {
    if (!first_use) slot(number).copied->synchronize();
    slot(number).span = cycle_[number % cycle_.size()];
    slot(number).name = "read";
    start(FileOp::kRead, number);
  } else {
    reap();
  }
  lock.lock();
  if (fresh) ++begun_;
  return true;
}

void SpillFile::Work::start(FileOp op, uint64_t number) {
  Slot& mine = slot(number);
  Trace* const trace = device_.trace();
  mine.slice = trace == nullptr ? nullptr : trace->claim(TraceTrack::kDisk, mine.name, Trace::Weight::kOutline);
  if (mine.slice != nullptr) {
    mine.slice->bytes = mine.span.bytes;
    mine.slice->stamp(TraceEdge::kBegin, Trace::host_now_ns());
  }
  mine.requests = static_cast<int>((mine.span.bytes + kRequestBytes - 1) / kRequestBytes);
  for (uint64_t done = 0; done < mine.span.bytes; done += kRequestBytes) {
    while (queue_->pending() >= depth_) reap();
    submit({.op = op,
            .offset = mine.span.offset + done,
            .data = data(number) + done,
            .bytes = std::min(kRequestBytes, mine.span.bytes - done),
            .tag = number % slots_.size()});
  }
}

void SpillFile::Work::submit(const FileRequest& request) {
  if (request.op == FileOp::kRead && queue_->pending() == 0) {
    const std::lock_guard lock(mutex_);
    busy_since_ns_ = now_ns();
  }
  queue_->submit(request);
}

FileDone SpillFile::Work::next_done() {
  const FileDone done = queue_->wait();
  if (queue_->pending() > 0) return done;
  const std::lock_guard lock(mutex_);
  if (busy_since_ns_ > 0) busy_ns_ += now_ns() - std::exchange(busy_since_ns_, 0);
  return done;
}

// Takes one request that is done; a span that is done with it goes to who waits for it, if it has been read by way of
// the verifier: this thread is to keep the disk busy.
void SpillFile::Work::reap() {
  const FileDone request = next_done();
  queue_->check(request);
  Slot& its = slots_[request.request.tag];
  if (--its.requests > 0) return;
  if (its.slice != nullptr) its.slice->stamp(TraceEdge::kEnd, Trace::host_now_ns());
  const bool read = request.request.op == FileOp::kRead;
  (read ? read_bytes_ : written_bytes_) += its.span.bytes;
  const std::lock_guard lock(mutex_);
  if (!read || verify_ == SpillVerify::kNothing) return hand_on(its);
  arrivals_.push_back(&its);
  arrived_.notify_one();
}

void SpillFile::Work::hand_on(Slot& its) {
  its.complete = true;
  while (slot(done_).complete) {
    slot(done_).complete = false;
    ++done_;
  }
  moved_.notify_all();
}

// ---- how many at once ----

// Before the first span is read: nothing is in the ring, and nothing is under way. What has been stopped while it was
// measured says nothing: the next reads measure again.
void SpillFile::Work::choose_depth(Lock& lock) {
  lock.unlock();
  double trial_ms = 0;
  ReadDepth chosen = options_.depth.depth > 0 ? options_.depth : measured_depth(&trial_ms);
  lock.lock();
  if (mode_ != Mode::kReading) return;
  depth_ms_ = trial_ms;
  depth_ = chosen.depth;
  chosen_ = std::move(chosen);
}

ReadDepth SpillFile::Work::measured_depth(double* trial_ms) {
  const uint64_t request_bytes = std::min(kRequestBytes, slot_stride_);
  if (options_.bytes < options_.least_measured_bytes) {
    return {.depth = kLeastReadDepth, .why = "too little to measure on"};
  }
  if (memory_.bytes() / request_bytes < kDeepest || queue_->concurrency() < kDeepest) {
    return {.depth = kLeastReadDepth, .why = "no room to try more"};
  }
  const auto goes_on = [this] {
    const std::lock_guard lock(mutex_);
    return mode_ == Mode::kReading;
  };
  DepthTrial trial({.queue = queue_.get(),
                    .memory = {memory_.data(), memory_.bytes()},
                    .request_bytes = request_bytes,
                    .cycle = cycle_,
                    .goes_on = goes_on});
  const Clock::time_point start = Clock::now();
  const std::vector<DepthRate> rates = trial.run();
  *trial_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  const ReadDepth chosen = headrace::choose_depth(rates, "measured at start");
  return chosen.depth > 0 ? chosen : ReadDepth{.depth = kLeastReadDepth, .why = "too little to measure on"};
}

// ----

void SpillFile::Work::seal(uint64_t number) {
  const SpillSpan span = slot(number).span;
  const uint64_t grain = options_.grain_bytes;
  for (uint64_t done = 0; done < span.bytes; done += grain) {
    sums_[(span.offset + done) / grain] = checksum({data(number) + done, grain});
  }
}

// ---- the verifier ----

// As they come: the first that arrived is mostly the first that is waited for.
void SpillFile::Work::verify_arrivals() noexcept {
  Lock lock(mutex_);
  for (;;) {
    arrived_.wait(lock, [&] { return mode_ == Mode::kQuitting || !arrivals_.empty(); });
    if (mode_ == Mode::kQuitting) return;
    Slot& its = *arrivals_.front();
    arrivals_.erase(arrivals_.begin());
    verifying_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      verify(its, {memory_.data() + static_cast<uint64_t>(&its - slots_.data()) * slot_stride_, its.span.bytes});
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    verifying_ = false;
    if (error != nullptr) {
      fail(lock, error);
    } else if (mode_ == Mode::kReading) {
      hand_on(its);
    }
    moved_.notify_all();
  }
}

void SpillFile::Work::verify(const Slot& its, std::span<const std::byte> data) {
  const Clock::time_point start = Clock::now();
  const uint64_t grain = options_.grain_bytes;
  for (uint64_t done = 0; done < data.size(); done += grain) {
    const uint64_t offset = its.span.offset + done;
    if (checksum(data.subspan(done, grain)) == sums_[offset / grain]) continue;
    throw_error(ExitCode::kStorage, file_.path(),
                str("the ", grain, " bytes at offset ", offset, " are not what was written there (their checksum)"),
                "The disk, or the memory, fails: spill to another one (--spill), and see the system's log (dmesg).");
  }
  checksum_ns_ += static_cast<uint64_t>((Clock::now() - start) / std::chrono::nanoseconds(1));
}

void SpillFile::Work::drain_queue() noexcept {
  while (queue_->pending() > 0) {
    try {
      next_done();
    } catch (...) {  // what waits for it is told of the first error
    }
  }
}

// ----

SpillFile::SpillFile(Device& device, const SpillFileOptions& options)
    : work_(std::make_unique<Work>(device, options)) {}
SpillFile::~SpillFile() = default;
void SpillFile::write(SpillSpan to, const std::byte* src, Stream& out, TraceName what) {
  work_->write(to, src, out, what);
}
void SpillFile::finish_writes() { work_->finish_writes(); }
void SpillFile::begin_reads(std::vector<SpillSpan> cycle) { work_->begin_reads(std::move(cycle)); }
const std::byte* SpillFile::take() { return work_->take(); }
void SpillFile::release(Stream& in) { work_->release(in); }
void SpillFile::stop_reads() noexcept { work_->stop_reads(); }
void SpillFile::set_verify(SpillVerify verify) { work_->set_verify(verify); }
void SpillFile::check() { work_->check(); }
SpillStats SpillFile::stats() const { return work_->stats(); }

}  // namespace headrace
