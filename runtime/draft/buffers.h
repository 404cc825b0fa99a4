// Options of a run for a draft that ranks a vocabulary, and the rows of its passes. Plain values and views.
#pragma once

#include <cstdint>

#include "kernels/attention/op.h"
#include "kernels/sample/op.h"
#include "offload/device/device.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/draft/cache.h"
#include "runtime/draft/draft.h"
#include "runtime/draft/retrieval.h"
#include "runtime/draft/tree_builder.h"

namespace headrace {

// Options of one run.
struct DraftSetup {
  TreeShape tree;
  int64_t window = 0;  // rows that a query sees, without the sinks; 0: all
  RetrievalSetup retrieval{};
  int64_t prompt_tokens = 0, context_tokens = 0;
  int64_t most_prompt_tokens = 0;  // DraftRun
  int64_t most_pending = 0;        // most tokens that a pass holds before a proposed tree
  int64_t pass_nodes = 0;          // nodes that a pass judges; 0: those and the tree
  SamplingSettings sampling{};     // of the run: candidates are ranked with the same noise
  bool saves = false;              // DraftRun
  int64_t target_vocab = 0;        // the target's vocabulary if padded differently; 0: the draft's

  bool shares() const { return most_prompt_tokens > 0; }
  int64_t planned_tokens() const { return shares() ? most_prompt_tokens : prompt_tokens; }  // that memory is for
};

// Rows of the prompt from `first` on, the first that the cache keeps of it, less at most `before`; of runs that share,
// as many as any prompt has.
int64_t most_prompt_rows(const DraftSetup& options, const DraftCacheShape& shape, int64_t first, int64_t before = 0);
// Most rows that one round adds to the cache for accepted tokens.
inline int64_t stable_rows(const TreeShape& tree) { return tree.deepest() + 1; }
// Those, and the rows that the levels forward.
int64_t round_rows(const TreeShape& tree);
// On CUDA a product reads and writes whole groups of rows.
int64_t padded_rows(Backend backend, int64_t rows);
AttentionState carve_states(int64_t states, int64_t head_dim, BumpAllocator& allocator);

// Rows of the prompt: one list in device memory and one on the host, for a single copy.
struct PromptRows {
  int32_t *tokens, *positions;
  uint64_t bytes;  // of both
  static PromptRows carve(int64_t rows, BumpAllocator& allocator);
};

// Rows of one pass; their K and V are pass rows of the cache from `pass_row` on.
struct DraftRows {
  const int32_t *tokens, *positions, *path, *committed;  // device, as in TailAttentionParams
  int64_t count, path_stride;
  int64_t pass_row;
  int64_t deepest;  // the largest position
};

}  // namespace headrace
