#include "runtime/kv/kv_streamer.h"

#include <utility>

#include "offload/host/start_thread.h"
#include "runtime/kv/kv_cache.h"

namespace headrace {

KvStreamer::KvStreamer(Device& device, KvBacking& backing, LinkQueue& link, std::vector<int64_t> layers,
                       const RowRing& ring)
    : backing_(backing),
      link_(link),
      layers_(std::move(layers)),
      key_makers_(ring.keys),
      ring_(device, ring.slots, ring.slot_bytes) {
  if (backing.shape().values_alone) {
    CHECK(static_cast<int64_t>(key_makers_.size()) >= backing.layers(), key_makers_.size(), " key makers");
    keys_ = device.allocate(ring.slot_bytes, "keys made of streamed values");
  }
  if (!backing.has_disk()) {
    link_.add(*this);
    return;
  }
  thread_ = start_thread("the thread that takes rows from disk to the device", [this] { serve(); });
}

KvStreamer::~KvStreamer() {
  if (from_disk()) {
    stop_reads();
    {
      const MutexLock lock(mutex_);
      quit_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  link_.remove(*this);
  link_.drain();  // before the ring goes
}

void KvStreamer::begin_step(int64_t sealed_segments) {
  ++steps_;
  if (sealed_segments == sealed_segments_) return;
  stop();
  steps_ = 1;
  sealed_segments_ = sealed_segments;
  filled_ = taken_ = 0;
  RowShape offloaded = backing_.shape();
  offloaded.layers = backing_.layers();
  schedule_ = plan_stream(offloaded, backing_.placement(), sealed_segments, ring_.slot_bytes());
  link_.enqueue([this](Stream& in) { in.wait(backing_.offloaded()); });  // a segment has just been offloaded
  if (schedule_.chunks.empty()) return;
  if (from_disk()) return begin_disk();
  link_.pump();
}

void KvStreamer::stop() {
  if (from_disk()) stop_reads();
  link_.enqueue([this](Stream& in) { ring_.reset(in); });
  sealed_segments_ = -1;
}

KvStreamer::Place KvStreamer::place(uint64_t number) const {
  const uint64_t chunks = schedule_.chunks.size(), place = number % static_cast<uint64_t>(schedule_.fills());
  return {.layer = static_cast<int64_t>(place / chunks), .chunk = &schedule_.chunks[place % chunks]};
}

bool KvStreamer::fetch(uint64_t number) {
  const auto [layer, chunk] = place(number);
  return backing_.fetch(layer, *chunk, number, ring_, link_);
}

// Passes that do not stream rows may come between the steps that do.
LinkPlace KvStreamer::next() const {
  if (idle()) return {.pass = INT64_MAX};
  const auto step = static_cast<int64_t>(filled_ / static_cast<uint64_t>(schedule_.fills()));
  return {.pass = link_.pass() + step - (steps_ - 1),
          .layer = layers_[static_cast<size_t>(place(filled_).layer)],
          .rank = 1};
}

void KvStreamer::take(std::span<const KvSegment> copy, Stream& compute) {
  if (from_disk()) {
    const MutexLock lock(mutex_);
    while (taken_ >= thread_filled_ && error_ == nullptr) moved_.wait(mutex_);
    if (taken_ >= thread_filled_) std::rethrow_exception(error_);
  }
  slot_ = ring_.acquire(taken_, compute);
  if (backing_.shape().values_alone) return make_keys(compute);
  const RowRemainders* const remainders = backing_.remainders();
  if (remainders == nullptr) return;
  const auto [layer, chunk] = place(taken_);
  made_ = remainders->decode(layer, *chunk, slot_, copy, compute);
}

void KvStreamer::make_keys(Stream& compute) const {
  const auto [layer, chunk] = place(taken_);
  std::vector<KvSegment> segments;
  for (int64_t i = chunk->first_segment; i < chunk->last_segment; ++i) segments.push_back(segment(i));
  make_keys_of(backing_.shape(), key_makers_[static_cast<size_t>(layer)], segments, compute);
}

KvSegment KvStreamer::segment(int64_t index) const {
  const auto [layer, chunk] = place(taken_);
  CHECK(index >= chunk->first_segment && index < chunk->last_segment);
  const RowRemainders* const remainders = backing_.remainders();
  const bool made = remainders != nullptr && remainders->has(layer, index);
  const uint64_t offset = segments_bytes(backing_.shape(), chunk->first_segment, index);
  const std::byte* const keys = backing_.shape().values_alone ? keys_.data() + offset : nullptr;
  return segment_view(backing_.shape(), (made ? made_ : slot_) + offset, index, keys);
}

void KvStreamer::done(Stream& compute) {
  ring_.release(taken_++, compute);
  if (!from_disk()) {
    link_.pump();
    return;
  }
  const MutexLock lock(mutex_);
  released_ = taken_;
  wake_.notify_one();
}

// ---- from disk ----

void KvStreamer::begin_disk() {
  backing_.begin_reads(schedule_);
  const MutexLock lock(mutex_);
  thread_filled_ = released_ = 0;
  running_ = true;
  wake_.notify_one();
}

void KvStreamer::stop_reads() noexcept {
  const MutexLock lock(mutex_);
  running_ = false;
  {
    const MutexUnlock unlock(mutex_);
    backing_.stop_reads();  // releases the thread if it waits for the disk
  }
  while (filling_) moved_.wait(mutex_);
}

void KvStreamer::serve() noexcept {
  const MutexLock lock(mutex_);
  const auto slots = static_cast<uint64_t>(ring_.slots());
  for (;;) {
    while (!quit_ && !(running_ && thread_filled_ < released_ + slots)) wake_.wait(mutex_);
    if (quit_) return;
    filling_ = true;
    const uint64_t number = thread_filled_;
    bool filled = false;
    std::exception_ptr error;
    try {
      const MutexUnlock unlock(mutex_);
      filled = fetch(number);
    } catch (...) {
      error = std::current_exception();
    }
    filling_ = false;
    if (filled) {
      ++thread_filled_;
    } else {
      running_ = false;
    }
    if (error != nullptr) error_ = error;
    moved_.notify_all();
  }
}

}  // namespace headrace
