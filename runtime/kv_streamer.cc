#include "runtime/kv_streamer.h"

namespace headrace {

KvStreamer::KvStreamer(Device& device, KvCache& cache, int slots, uint64_t slot_bytes)
    : cache_(cache), ring_(device, slots, slot_bytes), in_(device.make_stream("rows in", StreamRole::kCopy)) {}

void KvStreamer::begin_step(int64_t closed_segments) {
  if (closed_segments == closed_segments_) return;
  closed_segments_ = closed_segments;
  ring_.reset(*in_);
  filled_ = taken_ = 0;
  RowShape leaving = cache_.shape();
  leaving.layers = cache_.host_layers();
  movement_ = plan_movement(leaving, cache_.places(), closed_segments, ring_.slot_bytes());
  in_->wait(cache_.host_ready());  // a segment has just left for the host
  if (movement_.chunks.empty()) return;
  for (int slot = 0; slot < ring_.slots(); ++slot) fill_one();
}

void KvStreamer::fill_one() {
  const uint64_t chunks = movement_.chunks.size(), place = filled_ % static_cast<uint64_t>(movement_.fills());
  const Chunk& chunk = movement_.chunks[place % chunks];
  const auto layer = static_cast<int64_t>(place / chunks);
  ring_.fill(filled_++, cache_.host_chunk(layer, chunk), chunk.bytes, *in_, {"layer", layer});
}

const std::byte* KvStreamer::next(Stream& compute) { return ring_.acquire(taken_, compute); }

void KvStreamer::done(Stream& compute) {
  ring_.release(taken_++, compute);
  fill_one();
}

}  // namespace headrace
