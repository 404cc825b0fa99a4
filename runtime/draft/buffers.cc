#include "runtime/draft/buffers.h"

namespace headrace {

int64_t most_prompt_rows(const DraftSetup& options, const DraftCacheShape& shape, int64_t first, int64_t before) {
  if (!options.shares()) return options.run.prompt_tokens - first;
  const int64_t all = options.run.most_prompt_tokens;
  return shape.windowed() && shape.chosen_rows == 0 ? std::min(all, shape.window + kPrefixTile + before) : all;
}

int64_t round_rows(const TreeShape& tree) {
  int64_t rows = stable_rows(tree);
  for (size_t level = 1; level < tree.levels.size(); ++level) rows += tree.levels[level].rows;
  return rows;
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
