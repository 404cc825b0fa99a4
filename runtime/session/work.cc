#include "runtime/session/work.h"

#include "runtime/grammar/token_masks.h"
#include "runtime/speculation/tree.h"

namespace headrace {

StepInputs StepInputs::carve(BumpAllocator& allocator, int64_t pass_rows, int64_t path_stride) {
  StepInputs inputs;
  for (int32_t** list : {&inputs.tokens, &inputs.positions, &inputs.draw_positions, &inputs.slots, &inputs.source}) {
    *list = allocator.take<int32_t>(pass_rows);
  }
  inputs.committed = allocator.take<int32_t>(1);
  inputs.first_row = allocator.take<int32_t>(1);
  inputs.ahead_row = allocator.take<int32_t>(1);
  inputs.ahead_length = allocator.take<int32_t>(1);
  inputs.path = allocator.take<int32_t>(pass_rows * path_stride);
  return inputs;
}

StepResult StepResult::carve(BumpAllocator& allocator, int64_t pass_rows) {
  StepResult result;
  result.acceptance = allocator.take<TreeAcceptance>(1);
  result.count = allocator.take<int32_t>(1);
  result.parents = allocator.take<int32_t>(kMaxTreeNodes);
  result.depths = allocator.take<int32_t>(kMaxTreeNodes);
  result.scores = allocator.take<float>(kMaxTreeNodes);
  result.samples = allocator.take<int32_t>(pass_rows);
  return result;
}

uint64_t StepResult::bytes(int64_t pass_rows) {
  return carved_bytes([&](BumpAllocator& allocator) { carve(allocator, pass_rows); });
}

StepLogProbs StepLogProbs::carve(BumpAllocator& allocator, int64_t pass_rows, int64_t tops) {
  StepLogProbs log_probs;
  log_probs.samples = allocator.take<float>(pass_rows);
  log_probs.top = allocator.take<float>(pass_rows * tops);
  log_probs.tokens = allocator.take<int32_t>(pass_rows * tops);
  return log_probs;
}

uint64_t StepLogProbs::bytes(int64_t pass_rows, int64_t tops) {
  return carved_bytes([&](BumpAllocator& allocator) { carve(allocator, pass_rows, tops); });
}

StepRules StepRules::carve(BumpAllocator& allocator, int64_t pass_rows, int64_t vocab) {
  StepRules rules;
  for (int32_t** list : {&rules.mask_rows, &rules.leaves, &rules.tokens, &rules.parents}) {
    *list = allocator.take<int32_t>(pass_rows);
  }
  rules.counts = allocator.take<int32_t>(vocab);
  rules.masks = allocator.take<uint32_t>(pass_rows * mask_words(vocab));
  return rules;
}

uint64_t StepRules::bytes(int64_t pass_rows, int64_t vocab) {
  return carved_bytes([&](BumpAllocator& allocator) { carve(allocator, pass_rows, vocab); });
}

PrefillStaging PrefillStaging::carve(BumpAllocator& allocator, int64_t prompt_tokens, int64_t tables, bool scored) {
  PrefillStaging staging{};
  staging.ids = allocator.take<int32_t>(prompt_tokens);
  staging.positions = allocator.take<int32_t>(prompt_tokens);
  staging.segments = allocator.take<KvSegment>(tables * segments_for(prompt_tokens));
  if (scored) {
    staging.next = allocator.take<int32_t>(prompt_tokens);
    staging.log_probs = allocator.take<float>(prompt_tokens);
  }
  return staging;
}

uint64_t PrefillStaging::bytes(int64_t prompt_tokens, int64_t tables, bool scored) {
  return carved_bytes([&](BumpAllocator& allocator) { carve(allocator, prompt_tokens, tables, scored); });
}

}  // namespace headrace
