// Options of a run for a draft that ranks a vocabulary, and the rows of its passes. Plain values and views.
#pragma once

#include <cstdint>

#include "offload/device/device.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/draft/cache.h"
#include "runtime/draft/draft_model.h"
#include "runtime/draft/retrieval.h"
#include "runtime/draft/tree_builder.h"

namespace headrace {

// A run, and what the draft makes of its options.
struct DraftSetup {
  DraftRun run{};
  TreeShape tree;
  int64_t window = 0;  // rows that a query sees, without the sinks; 0: all
  RetrievalSetup retrieval{};
  int64_t target_vocab = 0;  // the target's vocabulary if padded differently; 0: the draft's

  bool shares() const { return run.most_prompt_tokens > 0; }
  int64_t planned_tokens() const {  // that memory is for
    return shares() ? run.most_prompt_tokens : run.prompt_tokens;
  }
};

// Rows of the prompt from `first` on, the first that the cache keeps of it, less at most `before`; of runs that share,
// as many as any prompt has.
int64_t most_prompt_rows(const DraftSetup& options, const DraftCacheShape& shape, int64_t first, int64_t before = 0);
// Most rows that one round adds to the cache for accepted tokens.
inline int64_t stable_rows(const TreeShape& tree) { return tree.deepest() + 1; }
// Those, and the rows that the levels forward.
int64_t round_rows(const TreeShape& tree);

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
