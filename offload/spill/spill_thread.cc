// The functions of a SpillFile that run on the disk thread and on the verifier's thread.
#include <algorithm>
#include <utility>

#include "offload/host/clock.h"
#include "offload/spill/spill_file.h"

namespace headrace {

void SpillFile::serve() noexcept {
  const MutexLock lock(mutex_);
  while (mode_ != Mode::kQuitting) {
    try {
      if (!step()) wake_.wait(mutex_);
    } catch (...) {  // those that wait are told first: step() then drains
      fail(std::current_exception());
    }
  }
  const MutexUnlock unlock(mutex_);
  disk_.drain();
}

bool SpillFile::step() {
  if (mode_ == Mode::kWriting) return write_step();
  if (mode_ == Mode::kReading) return read_step();
  const bool failed = mode_ == Mode::kFailed && !disk_.idle();
  if (mode_ != Mode::kStopping && !failed) return false;
  {
    const MutexUnlock unlock(mutex_);
    disk_.drain();
    verifier_.forget_and_wait();
  }
  if (failed) return true;
  given_ = begun_ = done_ = taken_ = 0;
  for (SlotState& each : states_) each.complete = false;
  if (mode_ == Mode::kStopping) mode_ = Mode::kWriting;
  moved_.notify_all();
  return true;
}

bool SpillFile::write_step() {
  if (begun_ == given_ && disk_.idle()) return false;
  const bool fresh = begun_ < given_;
  const uint64_t number = begun_;
  {
    const MutexUnlock unlock(mutex_);
    if (fresh) {
      slot(number).copied->synchronize();
      verifier_.seal(slot(number).extent.offset, {data(number), slot(number).extent.bytes});
      start(FileOp::kWrite, number);
    } else {
      disk_.wait_for_one();
    }
  }
  if (fresh) ++begun_;
  return true;
}

// At most as many extents as there are slots are in flight or wait for take(). Requests that have arrived are handled
// before the thread waits for a slot.
bool SpillFile::read_step() {
  const uint64_t number = begun_, slots = slots_.size();
  const bool first_use = number < slots, free = number < reads_ && number - given_ < slots, pending = !disk_.idle();
  if (!free && !pending) return false;
  bool fresh = false;
  {
    const MutexUnlock unlock(mutex_);
    fresh = free && (first_use || !pending || slot(number).copied->done());
    if (fresh) {
      if (!first_use) slot(number).copied->synchronize();
      slot(number).extent = cycle_[number % cycle_.size()];
      slot(number).name = "read";
      start(FileOp::kRead, number);
    } else {
      disk_.wait_for_one();
    }
  }
  if (fresh) ++begun_;
  return true;
}

void SpillFile::start(FileOp op, uint64_t number) {
  Slot& mine = slot(number);
  Trace* const trace = device_.trace();
  mine.slice = trace == nullptr ? nullptr : trace->claim(TraceTrack::kDisk, mine.name, Trace::Weight::kOutline);
  if (mine.slice != nullptr) {
    mine.slice->bytes = mine.extent.bytes;
    mine.slice->stamp(TraceEdge::kBegin, host_now_ns());
  }
  mine.requests = cut_.requests(mine.extent.bytes);
  {
    const MutexLock lock(mutex_);
    SlotState& its = state(number);
    its.left = mine.requests;
    its.arrived_ns = its.verified_ns = 0;
  }
  disk_.start(op, mine.extent, data(number), number % slots_.size());
}

// Passes reads to the verifier, so that this thread keeps the disk busy.
void SpillFile::on_done(const FileRequest& request) {
  Slot& mine = slots_[request.tag];
  const bool read = request.op == FileOp::kRead, last = --mine.requests == 0;
  if (last && mine.slice != nullptr) mine.slice->stamp(TraceEdge::kEnd, host_now_ns());
  if (last) (read ? read_bytes_ : written_bytes_) += mine.extent.bytes;
  const MutexLock lock(mutex_);
  SlotState& its = states_[request.tag];
  if (last) its.arrived_ns = host_now_ns();
  if (read) {
    verifier_.add(request);
  } else if (--its.left == 0) {
    hand_on(its, its.arrived_ns);
  }
}

void SpillFile::on_verified(const FileRequest& request, std::exception_ptr error) {
  const MutexLock lock(mutex_);
  if (error != nullptr) return fail(std::move(error));
  if (mode_ != Mode::kReading) return;
  SlotState& its = states_[request.tag];
  if (--its.left == 0) hand_on(its, host_now_ns());
}

void SpillFile::hand_on(SlotState& its, int64_t now_ns) {
  if (&its == &state(taken_)) end_wait(now_ns);
  its.verified_ns = now_ns;
  its.complete = true;
  while (state(done_).complete) {
    state(done_).complete = false;
    ++done_;
  }
  moved_.notify_all();
}

// Keeps the first error.
void SpillFile::fail(std::exception_ptr error) {
  if (error_ == nullptr) error_ = std::move(error);
  if (mode_ != Mode::kQuitting) mode_ = Mode::kFailed;
  end_wait(host_now_ns());
  verifier_.forget();
  moved_.notify_all();
  wake_.notify_all();
}

// The part of take()'s wait after the extent had arrived.
int64_t SpillFile::waits_for_verifier_ns(int64_t now_ns) const {
  const SlotState& its = states_[taken_ % states_.size()];
  if (waits_since_ns_ == 0 || its.arrived_ns == 0 || its.verified_ns > 0) return 0;
  return std::max<int64_t>(0, now_ns - std::max(its.arrived_ns, waits_since_ns_));
}

void SpillFile::end_wait(int64_t now_ns) {
  verify_wait_ns_ += waits_for_verifier_ns(now_ns);
  waits_since_ns_ = 0;
}

}  // namespace headrace
