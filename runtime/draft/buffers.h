// What a draft that ranks a vocabulary is made of: options of a run, its decoder, the rows of its passes. Plain values
// and views.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/device/device.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/draft/cache.h"
#include "runtime/draft/draft_model.h"
#include "runtime/draft/retrieval.h"
#include "runtime/draft/tree_builder.h"
#include "runtime/layers/product_bytes.h"

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

// What a draft computes: its layers, and the products of its own.
struct DraftDecoder {
  std::vector<LayerSpec> layers;
  int64_t hidden = 0, logits = 0;    // logits: of a row
  DType type = DType::kBF16;         // of the weights
  DType hidden_type = DType::kBF16;  // of the residual stream
  bool keeps_blocks = false;         // of the weights
  double rms_eps = 0;
  const RopeConfig* rope = nullptr;  // must outlive the draft
  int64_t max_positions = 0;
  std::vector<ProductSize> products{}, prompt_products{};  // beside those of the layers and the head; of whole prompts
};

// Rows of a prompt in one product of a draft. At most the smallest segment: saved rows, in multiples of a GPU's prefill
// group, then all come from whole groups, which round alike for every prompt.
constexpr int64_t kDraftPrefillGroupRows = 512;

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
