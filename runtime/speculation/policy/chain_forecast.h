// What a refresh is expected to confirm of a chain of pending tokens, for RefreshPolicy. Each token is rejected with
// the same chance if all before it are correct; a refresh confirms those up to the first wrong one, which its own token
// replaces. The chance is that of other runs with the same partial KV until refreshes of this run show another. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cache/partial.h"
#include "runtime/speculation/policy/refresh_policy.h"
#include "runtime/speculation/policy/running_cost.h"
#include "runtime/speculation/verify_options.h"

namespace headrace {

// The share of judged pending tokens that refreshes rejected, at temperature 0.8: SmolLM2-64K inflated to 8B with
// blocks of 4,096 tokens and with copies, 61,440 tokens and more, and as it is with an int8 copy on a CPU
// (docs/measuring.md, "Lossless partial verification").
constexpr double usual_rejected_share(const PartialShape& partial) {
  if (partial.exact) return 0;
  if (!partial.copy) return 0.11;
  return partial.copy == DType::kInt4 ? 0.034 : 0.014;
}

// The same of a tree, which keeps second choices: the rate with which the forecast below and the measured times of
// steps give the tokens/s that were measured, without a draft and with EAGLE-3 (docs/measuring.md, as above).
constexpr double usual_loss_rate(const PartialShape& partial, bool tree, bool drafts) {
  if (!tree || partial.exact) return usual_rejected_share(partial);
  if (!partial.copy) return drafts ? 0.09 : 0.07;
  if (partial.copy == DType::kInt4) return drafts ? 0.03 : 0.016;
  return drafts ? 0.0075 : 0.0025;
}

// The nodes that a refresh verifies of a tree for each partial step before it (bench/results/partial_h100_copies.json
// and partial_h200_quarter_streamed.json). A step keeps second choices, and blocks err more often than copies.
// Substitutes of weights are taken to err like an int4 copy.
constexpr double usual_kept_nodes(const PartialShape& partial, bool drafts) {
  if (partial.has_blocks()) return drafts ? 17 : 15;
  if (partial.exact || partial.copy == DType::kInt4) return drafts ? 6 : 3.8;
  return drafts ? 4 : 3.4;
}

// Tokens that a refresh confirms of so many pending ones, with the one in place of the first wrong one.
inline double confirmed_of_chain(double pending, double rejected_share) {
  return rejected_share > 0 ? (1 - std::pow(1 - rejected_share, pending)) / rejected_share : pending;
}

class ChainForecast {
 public:
  // `usual_share`: of other runs, above 0.
  explicit ChainForecast(double usual_share) : usual_(usual_share) {}
  explicit ChainForecast(const PartialShape& partial) : ChainForecast(usual_rejected_share(partial)) {}

  // A partial step that added `tokens` pending tokens.
  void record_partial(int64_t tokens) { step_tokens_.add(static_cast<double>(tokens)); }
  // A refresh that committed `beyond` tokens after the pending ones, if all those were correct.
  void record_refresh(const VerifyOutcome& outcome, int64_t beyond) {
    const double judged = static_cast<double>(outcome.judged);
    const double keep = std::min(1.0, kMaxJudged / (judged_ + judged));
    judged_ = judged_ * keep + judged;
    rejected_ = rejected_ * keep + static_cast<double>(outcome.rejected);
    if (outcome.rejected == 0) beyond_.add(static_cast<double>(beyond));
  }

  // Tokens that a partial step adds.
  double step_tokens() const { return std::max(1.0, step_tokens_.value(1)); }
  // A partial step after `pending` tokens.
  RefreshPolicy::Growth next_step(int64_t pending) const {
    const double now = static_cast<double>(pending);
    return {.expected = expected(now),
            .more = expected(now + step_tokens()) - expected(now),
            .rows = now,
            .more_rows = step_tokens()};
  }
  // All partial steps up to the end of the run, where `end` tokens are pending: if all are correct, no further refresh
  // follows.
  RefreshPolicy::Growth to_the_end(int64_t pending, int64_t end) const {
    const double now = static_cast<double>(pending), all = static_cast<double>(end);
    return {.expected = expected(now),
            .more = confirmed_of_chain(all, rejected_share()) - expected(now),
            .steps = (all - now) / step_tokens(),
            .saves = std::pow(1 - rejected_share(), all),
            .rows = now,
            .more_rows = all - now};
  }

 private:
  static constexpr double kMaxJudged = 600;  // limit, since the text may change

  // As if one token had been rejected before, after the usual number.
  double rejected_share() const { return (rejected_ + 1) / (judged_ + 1 / usual_); }
  double expected(double pending) const {
    const double beyond = std::max(1.0, beyond_.value(step_tokens()));
    return confirmed_of_chain(pending, rejected_share()) + std::pow(1 - rejected_share(), pending) * beyond;
  }

  const double usual_;
  double judged_ = 0, rejected_ = 0;  // decaying sums
  RunningMean step_tokens_, beyond_;
};

}  // namespace headrace
