// Fills a late partial KV (MemoryPlan::late_partial) in one pass over the full KV, whose rows are read on the device or
// as they arrive. Thread: the session's.
#pragma once

#include "runtime/kv/kv_streamer.h"
#include "runtime/session/sequence.h"

namespace headrace {

// Allocates the partial KV and enqueues the pass; with remainders it waits for the pass. REQUIRES: prefill has freed
// its memory, and `compute` is idle.
// `streamer`: null if all rows are resident.
void fill_late_partial(const Sequence& sequence, KvStreamer* streamer, Stream& compute);

}  // namespace headrace
