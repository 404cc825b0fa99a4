// The buffers of an EAGLE-3 round and of its prefill, as views into one device buffer each; internal to Eagle3Draft.
#pragma once

#include "kernels/attention.h"
#include "runtime/draft/eagle3.h"

namespace headrace {

// What a round reads from the host, in one block that is copied once: the accepted path, one position after another.
struct Eagle3Draft::Inputs {
  int32_t *tokens, *positions, *features, *source;  // [rows]
  int32_t* path;                                    // [rows, rows]
  int32_t *committed_before, *committed;            // [1]: the cache's rows before and after them
  int32_t *root, *slot_shift;                       // [1]
};

struct Eagle3Draft::Work {
  Inputs inputs;
  uint64_t inputs_bytes;
  void* pass_features;             // [tree, hidden]: fc of the nodes of the last verify
  void* feature_normed;            // [tree, target hidden]; null without fc_norm
  void *token, *feature, *joined;  // [rows, hidden], [rows, hidden], [rows, 2 hidden]: what a forward joins
  void* output;                    // [rows, hidden]: in the feature's place in the level below
  DraftLayerWork layer;
};

struct Eagle3Draft::PrefillWork {
  PromptRows rows;                 // kDraftSinkRows + kept rows: the sinks', then the rest
  void *sink_features, *features;  // [kDraftSinkRows, hidden], [kept rows, hidden]
  void* normed;                    // [group, target hidden]; null without fc_norm
  void *token, *joined, *qkv;      // of one group
};

}  // namespace headrace
