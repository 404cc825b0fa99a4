// The layout of an executor's buffers. Views; owns nothing. Internal to Executor. Thread: the executor's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention/op.h"
#include "kernels/tree/op.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/layers/delta_net.h"
#include "runtime/session/int8_prefill.h"

namespace headrace {

// A step's inputs from the host, in one block that is copied once. Each is [pass_rows] unless noted.
struct StepInputs {
  int32_t *tokens, *positions, *draw_positions, *slots, *source;
  int32_t *committed, *first_row;     // [1]
  int32_t *ahead_row, *ahead_length;  // [1]: of DeltaAhead
  int32_t* path;  // [pass_rows, path_stride]; last, because a step uploads only the part that it uses
  static StepInputs carve(BumpAllocator& allocator, int64_t pass_rows, int64_t path_stride);
};

// A step's results, downloaded in one copy; the tokens of its inputs follow in memory.
struct StepResult {
  TreeAcceptance* acceptance;         // [1]
  int32_t *count, *parents, *depths;  // [1], [kMaxTreeNodes] each, of a draft's tree
  float* scores;                      // [kMaxTreeNodes]
  int32_t* samples;                   // [pass_rows]
  static StepResult carve(BumpAllocator& allocator, int64_t pass_rows);
  static uint64_t bytes(int64_t pass_rows);
};

// Log-probabilities of a pass, in one block that is downloaded in one copy. `tops`: tokens ranked per row.
struct StepLogProbs {
  float* samples = nullptr;   // [pass_rows]
  float* top = nullptr;       // [pass_rows, tops]
  int32_t* tokens = nullptr;  // [pass_rows, tops]
  static StepLogProbs carve(BumpAllocator& allocator, int64_t pass_rows, int64_t tops);
  static uint64_t bytes(int64_t pass_rows, int64_t tops);
};

// What the rules of a run need (node_rules.h), in one block: the host's copy has the same layout. The first four are
// uploaded for each pass, up to `counts`.
struct StepRules {
  int32_t *mask_rows = nullptr, *leaves = nullptr, *tokens = nullptr, *parents = nullptr;  // [pass_rows] each
  int32_t* counts = nullptr;                                                               // [vocab]
  uint32_t* masks = nullptr;  // [pass_rows, ceil(vocab / 32)]: as many as a pass may need
  static StepRules carve(BumpAllocator& allocator, int64_t pass_rows, int64_t vocab);
  static uint64_t bytes(int64_t pass_rows, int64_t vocab);
};

// All device buffers that are used after prefill.
struct StepWork {
  StepResult result;
  StepInputs inputs;
  uint64_t path_offset;  // of `path` in the inputs
  RopeTables rope, local_rope;
  std::byte* key_norms = nullptr;  // [row layers, head_dim], of the weights' type, where K is made of V; else null
  float* hidden;                   // [pass_rows, hidden]: the residual stream, in f32 whatever the weights are
  LayerWork layer;
  DeltaWork delta;  // of layers with a recurrent state
  AttentionState state, scratch;
  int64_t scratch_rows;       // capacity of `scratch`: segments of a launch times rows of the pass
  void* rotated_q = nullptr;  // [pass_rows, heads, head_dim]: queries of a copy in int4; null: there is none
  float* logits;              // [logit_rows, vocab]
  void* sample_workspace;
  // Log-probabilities [grow_rows, kRankedTokens] in f32, then as many tokens, downloaded in one copy.
  std::byte* ranked = nullptr;
  StepLogProbs log_probs;  // null unless options.log_probs
  StepRules rules;         // null unless options.rules
  void* rank_workspace = nullptr;
};

// The device buffers of prefill.
struct PrefillWork {
  int32_t *ids, *positions;  // [prompt]
  void* hidden;              // [prompt, hidden], of the weights' type: the states of the whole prompt
  std::byte* state_slots;    // [kStateSlots, group, hidden], if `hidden` is in host memory (HostStates); else null
  LayerWork layer;           // for one group of rows
  DeltaWork delta;           // the same, of layers with a recurrent state
  std::byte* matrices;       // quantised matrices, dequantised: SessionLayout::matrices_bytes(); null: 0
  Int8PrefillWork int8;      // of a prefill in 8 bits
  // [segments] of the layer that is built; if rows were kept, [layers, segments], since those of a layer may be read in
  // place.
  KvSegment* segments;
  // Null unless the prompt is scored.
  int32_t* next;     // [prompt]
  float* log_probs;  // [prompt]
  float* logits;     // [kDrawnRows, vocab]
  // Null unless its states are compared: some of the other run's, and their logits.
  std::byte* reference;     // [kDrawnRows, hidden]
  float* reference_logits;  // [kDrawnRows, vocab]
};

// Pinned memory through which the prompt's ids, positions, segment table and scores are copied.
struct PrefillStaging {
  int32_t *ids, *positions;  // [prompt]
  KvSegment* segments;
  int32_t* next;     // [prompt]; null unless the prompt is scored, as is log_probs
  float* log_probs;  // [prompt]
  // `tables`: of segments.
  static PrefillStaging carve(BumpAllocator& allocator, int64_t prompt_tokens, int64_t tables, bool scored);
  static uint64_t bytes(int64_t prompt_tokens, int64_t tables, bool scored);
};

}  // namespace headrace
