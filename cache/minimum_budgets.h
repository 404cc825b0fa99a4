// Why a run does not fit, and what would: the minimum of each budget with the others unchanged, and the longest
// context. It queries the planner itself, so that an offered value fits and one page less does not. Pure values; any
// thread.
#pragma once

#include <cstdint>

#include "cache/memory_plan.h"

namespace headrace {

struct MinimumBudgets {
  int64_t context_rows = 0;  // the longest that fits these budgets; 0: none does
  // As PlanInput counts what is free, in whole pages, each with the others as they are; 0: no amount of it would do.
  // With one memory for both tiers host_bytes is of both.
  uint64_t vram_bytes = 0, host_bytes = 0, disk_bytes = 0;
  // Where none of them would do alone: of both together, as little on the device as can be.
  uint64_t both_vram_bytes = 0, both_host_bytes = 0;
};

// REQUIRES: the run does not fit.
MinimumBudgets minimum_budgets(const PlanInput& input);

// The Error of a plan that does not fit, with the numbers a caller needs to plan alternatives.
class DoesNotFit : public Error {
 public:
  DoesNotFit(const PlanInput& input, const MinimumBudgets& minimum);
  const PlanInput& input() const { return input_; }
  const MinimumBudgets& minimum() const { return minimum_; }

 private:
  PlanInput input_;
  MinimumBudgets minimum_;
};

}  // namespace headrace
