#include "runtime/session/late_partial.h"

#include <algorithm>
#include <vector>

namespace headrace {
namespace {

// The segments of a layer that are on the device.
std::vector<KvSegment> segments_there(const KvCache& cache, int64_t layer) {
  const int64_t sealed = cache.sealed_segments(), open = cache.rows() - segment_range(sealed).begin;
  std::vector<KvSegment> segments;
  for (int64_t i = 0; i < std::min(sealed, cache.resident_segments(layer)); ++i) {
    segments.push_back(cache.resident_segment(layer, i));
  }
  if (open > 0) {
    segments.push_back(cache.active_segment(layer));
    segments.back().rows = static_cast<int32_t>(open);
  }
  return segments;
}

// What an int8 copy lacks of the segments of a chunk, once the copy has them.
void encode(const Sequence& sequence, int64_t layer, const Chunk& chunk, const KvStreamer& streamer, Stream& compute) {
  RowRemainders* const remainders = sequence.cache().backing().remainders();
  if (remainders == nullptr) return;
  const std::span<const KvSegment> copy = sequence.partial()->copy(layer);
  for (int64_t i = chunk.first_segment; i < chunk.last_segment; ++i) {
    if (!remainders->wants(layer, i)) continue;
    remainders->encode(layer, i, streamer.segment(i), copy[static_cast<size_t>(i)], compute);
  }
}

void fill_from_stream(const Sequence& sequence, int64_t layer, KvStreamer& streamer, Stream& compute) {
  std::vector<KvSegment> segments;
  for (const Chunk& chunk : streamer.schedule().chunks) {
    streamer.take({}, compute);
    segments.clear();
    for (int64_t i = chunk.first_segment; i < chunk.last_segment; ++i) segments.push_back(streamer.segment(i));
    sequence.partial()->fill_late(layer, segments, compute);
    encode(sequence, layer, chunk, streamer, compute);
    streamer.done(compute);
  }
}

}  // namespace

// Rows come whole: what the copy lacks of them is of no use before the copy is there. What was fetched ahead for the
// next step is dropped then, because that step has remainders.
void fill_late_partial(const Sequence& sequence, KvStreamer* streamer, Stream& compute) {
  KvCache& cache = sequence.cache();
  RowRemainders* const remainders = cache.backing().remainders();
  if (remainders != nullptr) remainders->set_usable(false);
  sequence.partial()->allocate_late();
  if (streamer != nullptr) streamer->begin_step(cache.sealed_segments());
  for (int64_t layer = 0; layer < cache.shape().layers; ++layer) {
    sequence.partial()->fill_late(layer, segments_there(cache, layer), compute);
    if (streamer != nullptr && layer < cache.host_layers()) fill_from_stream(sequence, layer, *streamer, compute);
  }
  if (remainders == nullptr) return;
  remainders->finish_encoding(compute);
  compute.synchronize();
  if (streamer != nullptr) streamer->stop();
  remainders->set_usable(true);
}

}  // namespace headrace
