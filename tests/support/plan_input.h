// What a planner is asked in tests of costs: a prompt and its context, with room for all of it unless said otherwise.
#pragma once

#include "cache/cost.h"
#include "cache/memory_plan.h"

namespace headrace::testing {

inline ModelSizes llama_8b_sizes() {
  return {.layers = 32,
          .hidden = 4096,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .ffn = 14336,
          .vocab = 128256,
          .rows = {.layers = 32, .kv_heads = 8, .head_dim = 128}};
}

struct PlannedRun {
  int64_t prompt, context;
  KvMode mode = KvMode::kHost;
  uint64_t vram_free = 64 * kGiB;
};

inline PlanInput plan_input(const RowShape& rows, const PlannedRun& run) {
  PlanInput input;
  input.rows = rows;
  input.prompt_rows = run.prompt;
  input.context_rows = run.context;
  input.mode = run.mode;
  input.vram_free = run.vram_free;
  input.host_free = 64 * kGiB;
  return input;
}

}  // namespace headrace::testing
