#include "offload/spill/spill_file.h"

#include <algorithm>
#include <utility>

#include "offload/host/clock.h"
#include "offload/host/start_thread.h"

namespace headrace {

SpillFile::SpillFile(Device& device, const SpillFileOptions& options)
    : device_(device),
      options_(options),
      cut_(options.grain_bytes),
      slot_stride_(whole_pages(options.slot_bytes)),
      file_(File::temporary(options.folder, FileCaching::kDirect)),
      memory_(allocate()),
      slots_(static_cast<size_t>(options.slots)),
      states_(slots_.size()),
      verifier_({.name = file_.path(),
                 .file_bytes = options.bytes,
                 .cut = cut_,
                 .most_waiting = slots_.size() * cut_.requests(options.slot_bytes),
                 .sum = options.sum,
                 .on_done = [this](const FileRequest& r, std::exception_ptr e) { on_verified(r, std::move(e)); }}),
      disk_({.file = &file_,
             .cut = cut_,
             .depth = options.depth,
             .body = options.body,
             .memory = {memory_.data(), memory_.bytes()},
             .on_done = [this](const FileRequest& r) { on_done(r); }}) {
  for (Slot& each : slots_) each.copied = device.make_event();
  thread_ = start_thread("the thread that reads and writes the spilled file", [this] { serve(); });
}

// Allocates the space on the disk, and the slots.
PinnedBuffer SpillFile::allocate() {
  CHECK(options_.slots > 0 && options_.bytes % options_.grain_bytes == 0, "slots=", options_.slots,
        " grain_bytes=", options_.grain_bytes, " bytes=", options_.bytes);
  file_.allocate(options_.bytes);
  return device_.allocate_pinned(static_cast<uint64_t>(options_.slots) * slot_stride_,
                                 "the ring between disk and link");
}

void SpillFile::quit() noexcept {
  {
    const MutexLock lock(mutex_);
    mode_ = Mode::kQuitting;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// ---- for the writer ----

void SpillFile::write(Extent to, const std::byte* src, Stream& out, TraceName what) {
  CHECK(to.bytes > 0 && to.bytes <= options_.slot_bytes && to.offset % options_.grain_bytes == 0 &&
            to.bytes % options_.grain_bytes == 0 && to.offset + to.bytes <= options_.bytes,
        "offset ", to.offset, " bytes ", to.bytes);
  uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    while (given_ - done_ >= slots_.size() && error_ == nullptr) moved_.wait(mutex_);
    if (error_ != nullptr) std::rethrow_exception(error_);
    CHECK(mode_ == Mode::kWriting);
    number = given_;
  }
  Slot& mine = slot(number);
  mine.extent = to;
  mine.name = what;
  out.copy(data(number), src, to.bytes, Link::kDeviceToHost, what);
  out.record(*mine.copied);
  const MutexLock lock(mutex_);
  ++given_;
  wake_.notify_one();
}

void SpillFile::finish_writes() {
  const MutexLock lock(mutex_);
  while (mode_ == Mode::kWriting && done_ != given_) moved_.wait(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

// ---- for the reader ----

void SpillFile::begin_reads(std::vector<Extent> cycle, Repeat repeat) {
  for (const Extent& extent : cycle)
    CHECK(extent.bytes > 0 && extent.bytes <= options_.slot_bytes, "bytes ", extent.bytes);
  const MutexLock lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  CHECK(mode_ == Mode::kWriting && done_ == given_ && !cycle.empty());
  cycle_ = std::move(cycle);
  given_ = begun_ = done_ = taken_ = 0;
  reads_ = repeat == Repeat::kYes ? UINT64_MAX : cycle_.size();
  mode_ = Mode::kReading;
  wake_.notify_one();
}

const std::byte* SpillFile::take() {
  const MutexLock lock(mutex_);
  CHECK(mode_ != Mode::kReading || taken_ < reads_, "taken=", taken_);
  waits_since_ns_ = host_now_ns();
  while (mode_ == Mode::kReading && taken_ >= done_) moved_.wait(mutex_);
  waits_since_ns_ = 0;
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (mode_ != Mode::kReading) return nullptr;
  return data(taken_++);
}

void SpillFile::release(Stream& in) {
  uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    if (mode_ != Mode::kReading) return;
    CHECK(given_ < taken_, "released ", given_, " taken ", taken_);
    number = given_;
  }
  in.record(*slot(number).copied);
  const MutexLock lock(mutex_);
  if (mode_ != Mode::kReading) return;
  ++given_;
  wake_.notify_one();
}

void SpillFile::stop_reads() noexcept {
  const MutexLock lock(mutex_);
  if (mode_ != Mode::kReading) return;
  mode_ = Mode::kStopping;
  end_wait(host_now_ns());
  moved_.notify_all();
  wake_.notify_one();
  while (mode_ == Mode::kStopping) moved_.wait(mutex_);
}

void SpillFile::check() {
  const MutexLock lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

SpillStats SpillFile::stats() const {
  const uint64_t ring_requests = slots_.size() * cut_.requests(options_.slot_bytes);
  const MutexLock lock(mutex_);
  return {.file_bytes = options_.bytes,
          .written_bytes = written_bytes_,
          .read_bytes = read_bytes_,
          .checksum_ms = verifier_.busy_ms(),
          .verify_wait_ms = static_cast<double>(verify_wait_ns_ + waits_for_verifier_ns(host_now_ns())) / 1e6,
          .read_busy_ms = disk_.read_busy_ms(),
          .how = disk_.requests().describe() + (file_.direct() ? ", O_DIRECT" : ", through the page cache"),
          .reads_at_once = static_cast<int>(
              std::min<uint64_t>(std::min(options_.depth, disk_.requests().concurrency()), ring_requests))};
}

}  // namespace headrace
