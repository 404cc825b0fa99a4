// Explains why a run does not fit and what would: the minimum of each budget with the others unchanged, and the longest
// context. It queries the planner itself, so an offered value fits and one page less does not. Pure values; any thread.
#pragma once

#include <cstdint>

#include "cache/memory_plan.h"

namespace headrace {

struct MinimumBudgets {
  int64_t context_rows = 0;  // longest context that fits these budgets; 0: none does
  // The smallest free bytes of each budget that fit, in whole pages, with the others unchanged. 0: no amount fits. With
  // one memory for both tiers host_bytes covers both.
  uint64_t vram_bytes = 0, host_bytes = 0, disk_bytes = 0;
  // If no single budget is enough: both together, with the smallest device share.
  uint64_t both_vram_bytes = 0, both_host_bytes = 0;
};

// REQUIRES: the run does not fit.
MinimumBudgets minimum_budgets(const PlanInput& input);
// Of a run that may be either of two: the least that fits one of them.
MinimumBudgets least_of(const MinimumBudgets& a, const MinimumBudgets& b);

// The Error of a plan that does not fit, with the numbers from which a caller plans alternatives.
class DoesNotFit : public Error {
 public:
  DoesNotFit(const PlanInput& input, const MinimumBudgets& minimum);
  // The same run, which would fit with `instead` of the copy of all rows that it was to have.
  DoesNotFit(const DoesNotFit& refused, PartialKind instead);
  const PlanInput& input() const { return input_; }
  const MinimumBudgets& minimum() const { return minimum_; }
  std::optional<PartialKind> instead() const { return instead_; }

 private:
  PlanInput input_;
  MinimumBudgets minimum_;
  std::optional<PartialKind> instead_;
};

}  // namespace headrace
