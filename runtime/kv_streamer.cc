#include "runtime/kv_streamer.h"

#include <utility>
#include <vector>

#include "offload/start_thread.h"

namespace headrace {

KvStreamer::KvStreamer(Device& device, KvCache& cache, int slots, uint64_t slot_bytes)
    : cache_(cache), ring_(device, slots, slot_bytes), in_(device.make_stream("rows in", StreamRole::kCopy)) {
  if (cache.disk() == nullptr) return;
  thread_ = start_thread("the thread that takes rows from disk to the device", [this] { serve(); });
}

KvStreamer::~KvStreamer() {
  if (!from_disk()) return;
  quiet();
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void KvStreamer::begin_step(int64_t closed_segments) {
  if (closed_segments == closed_segments_) return;
  stop();
  closed_segments_ = closed_segments;
  filled_ = taken_ = 0;
  RowShape leaving = cache_.shape();
  leaving.layers = cache_.host_layers();
  movement_ = plan_movement(leaving, cache_.places(), closed_segments, ring_.slot_bytes());
  in_->wait(cache_.host_ready());  // a segment has just left for the host
  if (movement_.chunks.empty()) return;
  if (from_disk()) return begin_disk();
  for (int slot = 0; slot < ring_.slots(); ++slot) fill_one();
}

void KvStreamer::stop() {
  if (from_disk()) quiet();
  ring_.reset(*in_);
  closed_segments_ = -1;
}

KvStreamer::Place KvStreamer::place(uint64_t number) const {
  const uint64_t chunks = movement_.chunks.size(), place = number % static_cast<uint64_t>(movement_.fills());
  return {.layer = static_cast<int64_t>(place / chunks), .chunk = &movement_.chunks[place % chunks]};
}

void KvStreamer::fill_one() {
  const auto [layer, chunk] = place(filled_);
  ring_.fill(filled_++, cache_.host_chunk(layer, *chunk), chunk->bytes, *in_, {"layer", layer});
}

const std::byte* KvStreamer::next(Stream& compute) {
  if (from_disk()) {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [&] { return taken_ < thread_filled_ || error_ != nullptr; });
    if (taken_ >= thread_filled_) std::rethrow_exception(error_);
  }
  return ring_.acquire(taken_, compute);
}

void KvStreamer::done(Stream& compute) {
  ring_.release(taken_++, compute);
  if (!from_disk()) return fill_one();
  const std::lock_guard lock(mutex_);
  released_ = taken_;
  wake_.notify_one();
}

// ---- from disk ----

void KvStreamer::begin_disk() {
  cache_.finish_leaving();
  std::vector<SpillSpan> spans;
  for (int64_t layer = 0; layer < movement_.layers; ++layer) {
    for (const Chunk& chunk : movement_.chunks) {
      if (chunk.tier == Tier::kDisk) spans.push_back(cache_.disk_chunk(layer, chunk));
    }
  }
  if (!spans.empty()) cache_.disk()->begin_reads(std::move(spans));
  const std::lock_guard lock(mutex_);
  thread_filled_ = released_ = 0;
  running_ = true;
  wake_.notify_one();
}

void KvStreamer::quiet() noexcept {
  std::unique_lock lock(mutex_);
  running_ = false;
  lock.unlock();
  cache_.disk()->stop_reads();  // so that the thread does not wait for the disk
  lock.lock();
  moved_.wait(lock, [&] { return !filling_; });
}

void KvStreamer::serve() noexcept {
  std::unique_lock lock(mutex_);
  const auto slots = static_cast<uint64_t>(ring_.slots());
  for (;;) {
    wake_.wait(lock, [&] { return quit_ || (running_ && thread_filled_ < released_ + slots); });
    if (quit_) return;
    filling_ = true;
    const uint64_t number = thread_filled_;
    lock.unlock();
    bool filled = false;
    std::exception_ptr error;
    try {
      filled = fill_from_tiers(number);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
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

bool KvStreamer::fill_from_tiers(uint64_t number) {
  const auto [layer, chunk] = place(number);
  if (chunk->tier == Tier::kHost) {
    ring_.fill(number, cache_.host_chunk(layer, *chunk), chunk->bytes, *in_, {"layer", layer});
    return true;
  }
  const std::byte* const data = cache_.disk()->take();
  if (data == nullptr) return false;
  ring_.fill(number, data, chunk->bytes, *in_, {"from disk, layer", layer});
  cache_.disk()->release(*in_);
  return true;
}

}  // namespace headrace
