// The buffers of a LongSpec round and of its prefill, as views into one device buffer each; internal to LongSpecDraft.
#pragma once

#include "kernels/attention.h"
#include "runtime/draft/longspec.h"

namespace headrace {

// What a round reads from the host, in one block that is copied once: the root, then what was accepted before it. The
// root comes first, so that it alone can go on behind its keys and values.
struct LongSpecDraft::Inputs {
  int32_t *tokens, *positions, *source;  // [stable rows]
  int32_t* before;                       // [most rows]: the last position of the target's cache, for each query
  int32_t *root_position, *committed;    // [1]: the target's rows, and the cache's with the root in it
  int32_t* slot_shift;                   // [1]
};

struct LongSpecDraft::Work {
  Inputs inputs;
  uint64_t inputs_bytes;
  void* hidden;  // [rows, hidden]
  DraftLayerWork layer;
};

struct LongSpecDraft::PrefillWork {
  PromptRows rows;              // those that the window keeps
  void *hidden, *normed, *qkv;  // of one group
};

}  // namespace headrace
