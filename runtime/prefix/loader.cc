#include "runtime/prefix/loader.h"

#include <algorithm>
#include <utility>

#include "cache/base.h"
#include "offload/host/checksum.h"
#include "offload/host/start_thread.h"
#include "runtime/prefix/store.h"

namespace headrace {
namespace {

// Enough in flight to keep a solid-state disk busy, and to cover the compute between two layers.
constexpr uint64_t kRingBytes = 128 * kMiB;
constexpr uint64_t kMaxSlots = 32;
constexpr size_t kThreads = 8;

uint64_t slots_for(uint64_t largest_read, uint64_t reads) {
  return std::clamp<uint64_t>(kRingBytes / std::max<uint64_t>(1, largest_read), 2, std::min(kMaxSlots, reads + 1));
}

uint64_t largest(const std::vector<PrefixLoader::Read>& reads) {
  uint64_t bytes = 0;
  for (const PrefixLoader::Read& read : reads) bytes = std::max(bytes, read.bytes);
  return bytes;
}

}  // namespace

uint64_t PrefixLoader::ring_bytes(uint64_t largest_read, uint64_t reads) {
  return whole_pages(largest_read) * slots_for(largest_read, reads);
}

PrefixLoader::PrefixLoader(Device& device, std::vector<Read> reads)
    : reads_(std::move(reads)),
      slot_bytes_(whole_pages(largest(reads_))),
      slots_(slots_for(slot_bytes_, reads_.size())),
      ring_(device.allocate_pinned(slot_bytes_ * slots_, "the rows of a saved prefix")),
      states_(reads_.size(), State::kOpen) {
  for (size_t i = 0; i < slots_; ++i) used_.push_back(device.make_event());
  const size_t most = std::min({kThreads, slots_, reads_.size()});
  threads_ = start_threads(most, "a thread that reads the prefix cache", [this](size_t) { serve(); });
}

PrefixLoader::~PrefixLoader() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  room_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

const std::byte* PrefixLoader::next() {
  const MutexLock lock(mutex_);
  CHECK(consumed_ < reads_.size());
  while (states_[consumed_] == State::kOpen) came_.wait(mutex_);
  return states_[consumed_] == State::kThere ? ring_.data() + consumed_ % slots_ * slot_bytes_ : nullptr;
}

std::string PrefixLoader::failure() const {
  const MutexLock lock(mutex_);
  return error_line(error_);
}

void PrefixLoader::done(Stream& stream) {
  stream.record(*used_[consumed() % slots_]);
  {
    const MutexLock lock(mutex_);
    ++consumed_;
  }
  room_.notify_one();
}

size_t PrefixLoader::consumed() const {
  const MutexLock lock(mutex_);
  return consumed_;
}

void PrefixLoader::serve() {
  const MutexLock lock(mutex_);
  for (;;) {
    while (!stop_ && begun_ < reads_.size() && begun_ >= consumed_ + slots_) room_.wait(mutex_);
    if (stop_ || begun_ == reads_.size()) return room_.notify_all();
    const size_t index = begun_++;
    const MutexUnlock unlock(mutex_);
    read(index);
  }
}

void PrefixLoader::read(size_t index) {
  const Read& wanted = reads_[index];
  const std::span<std::byte> to(ring_.data() + index % slots_ * slot_bytes_, wanted.bytes);
  std::exception_ptr failed;
  try {
    used_[index % slots_]->synchronize();
    wanted.file->read(wanted.offset, to);
    if (checksum(to) != wanted.checksum) {
      throw_error(ExitCode::kStorage, wanted.file->path(),
                  str("the ", wanted.bytes, " bytes at offset ", wanted.offset, " are not those that were written"));
    }
  } catch (...) {  // the reader formats the message: that may fail here, too
    failed = std::current_exception();
  }
  {
    const MutexLock lock(mutex_);
    states_[index] = failed == nullptr ? State::kThere : State::kFailed;
    if (failed != nullptr) error_ = std::move(failed);
  }
  came_.notify_one();
}

}  // namespace headrace
