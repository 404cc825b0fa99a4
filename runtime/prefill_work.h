// The device buffers that only prefill needs; internal to Session.
#pragma once

#include <array>

#include "runtime/session.h"

namespace headrace {

struct Session::PrefillWork {
  int32_t *ids, *positions;  // [prompt]
  void* hidden;              // [prompt, hidden]: the whole prompt's states stay on the device
  LayerWork layer;           // of one group
  std::byte* layer_buffer;   // K and V of a layer while it is built, in segments
  KvSegment* segments;       // [segments] of it, for the kernels
  int64_t segment_count;
  std::span<const KvSegment> host_segments;  // the same, for the host
};

// Pinned memory that the prompt's ids, positions and segment tables cross through.
uint64_t prefill_staging_bytes(int64_t prompt_tokens);

}  // namespace headrace
