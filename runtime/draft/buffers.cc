#include "runtime/draft/buffers.h"

#include "kernels/product/op.h"

namespace headrace {

int64_t most_prompt_rows(const DraftSetup& options, const DraftCacheShape& shape, int64_t first, int64_t before) {
  if (!options.shares()) return options.prompt_tokens - first;
  const int64_t all = options.most_prompt_tokens;
  return shape.windowed() && shape.chosen_rows == 0 ? std::min(all, shape.window + kPrefixTile + before) : all;
}

int64_t round_rows(const TreeShape& tree) {
  int64_t rows = stable_rows(tree);
  for (size_t level = 1; level < tree.levels.size(); ++level) rows += tree.levels[level].rows;
  return rows;
}

int64_t padded_rows(Backend backend, int64_t rows) {
  if (backend == Backend::kCpu) return rows;
  return static_cast<int64_t>(round_up(static_cast<uint64_t>(rows), kProductRowPadding));
}

AttentionState carve_states(int64_t states, int64_t head_dim, BumpAllocator& allocator) {
  return {.o = allocator.take<float>(states * head_dim), .ml = allocator.take<float>(states * 2)};
}

PromptRows PromptRows::carve(int64_t rows, BumpAllocator& allocator) {
  const uint64_t before = allocator.used_bytes();
  PromptRows lists;
  lists.tokens = allocator.take<int32_t>(rows);
  lists.positions = allocator.take<int32_t>(rows);
  lists.bytes = allocator.used_bytes() - before;
  return lists;
}

}  // namespace headrace
