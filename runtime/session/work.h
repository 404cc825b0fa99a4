// What a session computes in, beside the KV cache: where each thing lies in one buffer or another. Views; owns nothing.
// Internal to Session. Thread: as the session's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention/op.h"
#include "kernels/tree/op.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/model/forward.h"

namespace headrace {

// What a step reads from the host, in one block that is copied once. Each [pass_rows] but where said.
struct StepInputs {
  int32_t *tokens, *positions, *draw_positions, *slots, *source;
  int32_t *committed, *first_row;  // [1]
  int32_t* path;                   // [pass_rows, path_stride]; last, as a step uploads what it uses of it
  static StepInputs carve(BumpAllocator& allocator, int64_t pass_rows, int64_t path_stride);
};

// What of a step goes to the host, in one copy; the tokens of its inputs stand behind it.
struct StepResult {
  TreeAcceptance* acceptance;         // [1]
  int32_t *count, *parents, *depths;  // [1], [kMaxTreeNodes] each, of a draft's tree
  float* scores;                      // [kMaxTreeNodes]
  int32_t* samples;                   // [pass_rows]
  static StepResult carve(BumpAllocator& allocator, int64_t pass_rows);
  static uint64_t bytes(int64_t pass_rows);
};

// Everything on the device that outlives prefill.
struct StepWork {
  StepResult result;
  StepInputs inputs;
  uint64_t path_offset;  // in the inputs
  float *inv_freq, *cos_sin;
  void* hidden;  // [pass_rows, hidden]
  LayerWork layer;
  AttentionState state, scratch;
  int64_t scratch_rows;  // that `scratch` has room for: a launch's segments times the pass's rows
  float* logits;         // [logit_rows, vocab]
  void* sample_workspace;
  // Log-probabilities [grow_rows, kRankedTokens] in f32, then as many tokens: one copy.
  std::byte* ranked = nullptr;
  void* rank_workspace = nullptr;
};

// The device buffers that only prefill needs.
struct PrefillWork {
  int32_t *ids, *positions;  // [prompt]
  void* hidden;              // [prompt, hidden]: the whole prompt's states stay on the device
  LayerWork layer;           // of one group
  std::byte* matrices;       // of a layer that is kept in blocks, dequantised; null: none is, or it is not needed
  std::byte* layer_buffer;   // K and V of a layer while it is built, in segments
  KvSegment* segments;       // [segments] of it, for the kernels
  int64_t segment_count;
  std::span<const KvSegment> host_segments;  // the same, for the host
};

// Pinned memory that the prompt's ids, positions and segment table cross through.
struct PrefillStaging {
  int32_t *ids, *positions;  // [prompt]
  KvSegment* segments;
  static PrefillStaging carve(BumpAllocator& allocator, int64_t prompt_tokens);
  static uint64_t bytes(int64_t prompt_tokens);
};

}  // namespace headrace
