#include "offload/spill/spill_file.h"

#include <algorithm>
#include <utility>

#include "offload/host/clock.h"
#include "offload/host/start_thread.h"
#include "offload/spill/depth_trial.h"
#include "offload/spill/spill_work.h"

namespace headrace {

SpillFile::Work::Work(Device& device, const SpillFileOptions& options)
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
             .most_depth = std::max(kTrialDepths.back(), options.depth.depth),
             .body = options.body,
             .memory = {memory_.data(), memory_.bytes()},
             .on_done = [this](const FileRequest& r) { on_done(r); }}) {
  for (Slot& each : slots_) each.copied = device.make_event();
  disk_.set_depth(kMinReadDepth);
  thread_ = start_thread("the thread that reads and writes the spilled file", [this] { serve(); });
}

// The space on the disk, and the slots.
PinnedBuffer SpillFile::Work::allocate() {
  CHECK(options_.slots > 0 && options_.bytes % options_.grain_bytes == 0, "slots=", options_.slots,
        " grain_bytes=", options_.grain_bytes, " bytes=", options_.bytes);
  file_.allocate(options_.bytes);
  return device_.allocate_pinned(static_cast<uint64_t>(options_.slots) * slot_stride_,
                                 "the ring between disk and link");
}

void SpillFile::Work::quit() noexcept {
  {
    const MutexLock lock(mutex_);
    mode_ = Mode::kQuitting;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// ---- who writes ----

void SpillFile::Work::write(Extent to, const std::byte* src, Stream& out, TraceName what) {
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

void SpillFile::Work::finish_writes() {
  const MutexLock lock(mutex_);
  while (mode_ == Mode::kWriting && done_ != given_) moved_.wait(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

// ---- who reads ----

void SpillFile::Work::begin_reads(std::vector<Extent> cycle) {
  for (const Extent& extent : cycle)
    CHECK(extent.bytes > 0 && extent.bytes <= options_.slot_bytes, "bytes ", extent.bytes);
  const MutexLock lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  CHECK(mode_ == Mode::kWriting && done_ == given_ && !cycle.empty());
  cycle_ = std::move(cycle);
  given_ = begun_ = done_ = taken_ = 0;
  const int64_t late_ns = lateness_.starts();
  for (SlotState& each : states_) each.late_ns = late_ns;  // whatever became of its last extent
  mode_ = Mode::kReading;
  wake_.notify_one();
}

const std::byte* SpillFile::Work::take() {
  const MutexLock lock(mutex_);
  const int64_t ready = waits_since_ns_ = host_now_ns();
  while (mode_ == Mode::kReading && taken_ >= done_) moved_.wait(mutex_);
  waits_since_ns_ = 0;
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (mode_ != Mode::kReading) return nullptr;
  const SlotState& its = state(taken_);
  lateness_.takes(ready, its.arrived_ns, its.late_ns, std::max(ready, its.verified_ns));
  return data(taken_++);
}

void SpillFile::Work::release(Stream& in) {
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
  state(number).late_ns = lateness_.taker_ns();
  ++given_;
  wake_.notify_one();
}

void SpillFile::Work::stop_reads() noexcept {
  const MutexLock lock(mutex_);
  if (mode_ != Mode::kReading) return;
  mode_ = Mode::kStopping;
  end_wait(host_now_ns());
  moved_.notify_all();
  wake_.notify_one();
  while (mode_ == Mode::kStopping) moved_.wait(mutex_);
}

void SpillFile::Work::check() {
  const MutexLock lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

SpillStats SpillFile::Work::stats() const {
  const uint64_t ring_requests = slots_.size() * cut_.requests(options_.slot_bytes);
  const MutexLock lock(mutex_);
  const int64_t now = host_now_ns();
  return {.file_bytes = options_.bytes,
          .written_bytes = written_bytes_,
          .read_bytes = read_bytes_,
          .checksum_ms = verifier_.busy_ms(),
          .verify_wait_ms = static_cast<double>(verify_wait_ns_ + waits_for_verifier_ns(now)) / 1e6,
          .verify_late_ms = static_cast<double>(lateness_.taker_ns()) / 1e6,
          .take_wait_ms = static_cast<double>(take_wait_ns_ + since(waits_since_ns_, now)) / 1e6,
          .read_busy_ms = disk_.read_busy_ms(),
          .ring_full_ms = static_cast<double>(stood_ns_ + since(stands_since_ns_, now)) / 1e6,
          .how = disk_.requests().describe() + (file_.direct() ? ", O_DIRECT" : ", through the page cache"),
          .depth = chosen_,
          .reads_at_once = static_cast<int>(
              std::min<uint64_t>(std::min(chosen_.depth, disk_.requests().concurrency()), ring_requests)),
          .depth_ms = depth_ms_};
}

// ----

SpillFile::SpillFile(Device& device, const SpillFileOptions& options)
    : work_(std::make_unique<Work>(device, options)) {}
SpillFile::~SpillFile() = default;
void SpillFile::write(Extent to, const std::byte* src, Stream& out, TraceName what) {
  work_->write(to, src, out, what);
}
void SpillFile::finish_writes() { work_->finish_writes(); }
void SpillFile::begin_reads(std::vector<Extent> cycle) { work_->begin_reads(std::move(cycle)); }
const std::byte* SpillFile::take() { return work_->take(); }
void SpillFile::release(Stream& in) { work_->release(in); }
void SpillFile::stop_reads() noexcept { work_->stop_reads(); }
void SpillFile::set_verify(SpillVerify verify) { work_->set_verify(verify); }
void SpillFile::check() { work_->check(); }
SpillStats SpillFile::stats() const { return work_->stats(); }

}  // namespace headrace
