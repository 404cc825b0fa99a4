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
constexpr int kDepth = 32;

using Clock = std::chrono::steady_clock;

}  // namespace

// Spans are numbered in the order in which they are written, or read; number n uses slot n % slots. A slot goes from
// who gives the span to the thread and, when it is done, back.
class SpillFile::Work {
 public:
  Work(Device& device, const SpillFileOptions& options);
  ~Work();

  void write(SpillSpan to, const std::byte* src, Stream& out, TraceName what);
  void finish_writes();
  void begin_reads(std::vector<SpillSpan> cycle);
  const std::byte* take();
  void release(Stream& in);
  void stop_reads() noexcept;
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

  Slot& slot(uint64_t number) { return slots_[number % slots_.size()]; }
  std::byte* data(uint64_t number) const { return memory_.data() + number % slots_.size() * slot_stride_; }

  // ---- the thread's ----
  void serve() noexcept;
  bool step(Lock& lock);  // false: there is nothing to do
  bool write_step(Lock& lock);
  bool read_step(Lock& lock);
  void start(FileOp op, uint64_t number);
  void reap();
  void seal(uint64_t number);
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

  std::mutex mutex_;
  std::condition_variable wake_, moved_;  // for the thread; for who waits for it
  Mode mode_ = Mode::kWriting;
  std::exception_ptr error_;
  // Numbers below these: written() or released, begun by the thread, done by it, taken.
  uint64_t given_ = 0, begun_ = 0, done_ = 0, taken_ = 0;
  std::thread thread_;  // last
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
  queue_ = FileQueue::open(file_, {.depth = kDepth, .body = options.body, .memory = {memory_.data(), memory_.bytes()}});
  thread_ = std::thread([this] { serve(); });
}

SpillFile::Work::~Work() {
  {
    const std::lock_guard lock(mutex_);
    mode_ = Mode::kQuitting;
  }
  wake_.notify_all();
  thread_.join();
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
  return {.file_bytes = options_.bytes,
          .written_bytes = written_bytes_,
          .read_bytes = read_bytes_,
          .checksum_ms = static_cast<double>(checksum_ns_) / 1e6,
          .how = queue_->describe() + (file_.direct() ? ", O_DIRECT" : ", through the page cache")};
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
      error_ = error;
      if (mode_ != Mode::kQuitting) mode_ = Mode::kFailed;
      moved_.notify_all();
    }
  }
  lock.unlock();
  drain_queue();
}

bool SpillFile::Work::step(Lock& lock) {
  if (mode_ == Mode::kWriting) return write_step(lock);
  if (mode_ == Mode::kReading) return read_step(lock);
  if (mode_ != Mode::kStopping) return false;
  lock.unlock();
  drain_queue();
  lock.lock();
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
    if (queue_->full()) reap();
    queue_->submit({.op = op,
                    .offset = mine.span.offset + done,
                    .data = data(number) + done,
                    .bytes = std::min(kRequestBytes, mine.span.bytes - done),
                    .tag = number % slots_.size()});
  }
}

// Takes one request that is done; a span that is done with it is given on.
void SpillFile::Work::reap() {
  const FileDone request = queue_->wait();
  queue_->check(request);
  Slot& its = slots_[request.request.tag];
  if (--its.requests > 0) return;
  if (its.slice != nullptr) its.slice->stamp(TraceEdge::kEnd, Trace::host_now_ns());
  const bool read = request.request.op == FileOp::kRead;
  if (read) verify(its, {data(request.request.tag), its.span.bytes});
  (read ? read_bytes_ : written_bytes_) += its.span.bytes;
  const std::lock_guard lock(mutex_);
  its.complete = true;
  while (slot(done_).complete) {
    slot(done_).complete = false;
    ++done_;
  }
  moved_.notify_all();
}

void SpillFile::Work::seal(uint64_t number) {
  const SpillSpan span = slot(number).span;
  const uint64_t grain = options_.grain_bytes;
  for (uint64_t done = 0; done < span.bytes; done += grain) {
    sums_[(span.offset + done) / grain] = checksum({data(number) + done, grain});
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
      queue_->wait();
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
void SpillFile::check() { work_->check(); }
SpillStats SpillFile::stats() const { return work_->stats(); }

}  // namespace headrace
