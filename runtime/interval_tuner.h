// What `--refresh-interval auto` does: chooses, refresh after refresh, how many tokens may be pending before the next
// one, so that the most tokens are confirmed a second. A refresh that streams costs what many partial steps cost, and
// is worth many pending tokens; but each may be overturned, and takes all behind it along. Pure: it is told what steps
// cost and gave, and has no clock.
#pragma once

#include <cstdint>

#include "runtime/verification.h"

namespace headrace {

class IntervalTuner {
 public:
  // Pending tokens, from 0 (every step reads the full KV) to kMostPending, at which the next step should be a refresh.
  int64_t pending() const { return pending_; }

  // A partial step that added `tokens` pending tokens, or a refresh that judged some and confirmed `tokens` beyond
  // them.
  void record_partial(double ms, int64_t tokens);
  void record_refresh(double ms, const Judgement& judgement, int64_t tokens_beyond, bool all_right);

 private:
  // A mean that forgets; the first sample may have paid for something that comes once.
  struct Mean {
    double sum = 0, weight = 0;
    void add(double sample);
    double value(double otherwise) const { return weight > 0 ? sum / weight : otherwise; }
  };
  void choose();

  Mean partial_ms_, partial_tokens_, refresh_ms_, refresh_tokens_;
  double judged_ = 20, overturned_ = 1;  // as if so many had been seen before
  int64_t refreshes_ = 0, partials_ = 0;
  int64_t pending_ = 32;
};

}  // namespace headrace
