// Predicts what a draft with weights takes, for cache/cost. Pure functions of plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cost.h"

namespace headrace {

// What each level of a draft's tree reads, and what its prompt takes.
struct DraftPass {
  uint64_t bytes = 0;                       // weights, with the head
  std::vector<QuantisedBytes> quantised{};  // part of those
  uint64_t rows_bytes = 0;                  // of its KV cache
  int64_t prompt_weights = 0;               // elements of the matrices that multiply each token of a prompt
};

// The time to propose a tree of `levels` levels: one pass over the draft for each.
double draft_ms(const DraftPass& pass, int64_t levels, const MachineRates& rates);
// The time to make its rows of a prompt.
double draft_prefill_ms(const DraftPass& pass, int64_t prompt_tokens, const MachineRates& rates);

}  // namespace headrace
