#include "runtime/draft/draft_buffers.h"

#include "kernels/product.h"

namespace headrace {

int64_t round_rows(const TreeShape& tree) {
  int64_t rows = stable_rows(tree);
  for (size_t level = 1; level < tree.levels.size(); ++level) rows += tree.levels[level].rows;
  return rows;
}

int64_t padded_rows(Backend backend, int64_t rows) {
  if (backend == Backend::kCpu) return rows;
  return static_cast<int64_t>(round_up(static_cast<uint64_t>(rows), kProductRowPadding));
}

AttentionState carve_states(int64_t states, int64_t head_dim, Carver& carver) {
  return {.o = carver.take<float>(states * head_dim), .ml = carver.take<float>(states * 2)};
}

// ---- a run's buffers ------------------------------------------------------------------------------------------------

DraftBuffers DraftBuffers::allocate(Device& device, const DraftBufferSizes& sizes) {
  DraftBuffers buffers;
  buffers.work = device.allocate(sizes.work, "the draft's buffers");
  buffers.inputs = device.allocate_pinned(sizes.inputs, "the draft's inputs");
  if (sizes.prefill > 0) buffers.prefill = device.allocate(sizes.prefill, "the draft's prefill");
  if (sizes.prefill_inputs > 0) {
    buffers.prefill_inputs = device.allocate_pinned(sizes.prefill_inputs, "the draft's prompt");
  }
  return buffers;
}

PromptRows PromptRows::carve(int64_t rows, Carver& carver) {
  const uint64_t before = carver.used_bytes();
  PromptRows lists;
  lists.tokens = carver.take<int32_t>(rows);
  lists.positions = carver.take<int32_t>(rows);
  lists.bytes = carver.used_bytes() - before;
  return lists;
}

DraftMemory draft_memory(const DraftBufferSizes& sizes, uint64_t check_bytes, const DraftCacheShape& cache,
                         const TreeSetup& tree) {
  return {
      .lasting_bytes = whole_pages(sizes.work) + check_bytes + cache.bytes() + TreeBuilder::device_bytes(tree),
      .prefill_bytes = whole_pages(sizes.prefill),
      .pinned_bytes = whole_pages(sizes.inputs) + whole_pages(sizes.prefill_inputs) + TreeBuilder::pinned_bytes(tree)};
}

}  // namespace headrace
