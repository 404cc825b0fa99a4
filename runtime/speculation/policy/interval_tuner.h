// `--refresh-interval auto` for chains: selects after each refresh how many tokens may be pending before the next one,
// so that the most tokens are committed per second. A refresh that streams costs as much as many partial steps, which
// favours many pending tokens; but each may be rejected, and discards all after it. Pure: costs and results are passed
// in, and it has no clock.
//
// It tracks what the choice depends on: the chance that a pending token is rejected, by its age (the partial KV was
// selected for the text at the refresh); the cost and yield of a partial step; the cost of a refresh by the number of
// rows that it judges and, separately, of one that judges none, whose tree may be smaller. Choices that are no longer
// made are retried now and then.
#pragma once

#include <array>
#include <cstdint>

#include "cache/partial.h"
#include "runtime/speculation/policy/running_cost.h"
#include "runtime/speculation/verify_options.h"

namespace headrace {

class IntervalTuner {
 public:
  // `streams`: passes over the full KV wait for the link. `partial`: what partial steps read, and with it how many of
  // their tokens are usually rejected.
  explicit IntervalTuner(bool streams, const PartialShape& partial = {});

  // The number of pending tokens at which the next step should be a refresh: from 0 (every step reads the full KV) to
  // kMaxPending.
  int64_t pending() const { return pending_; }

  // A partial step that added `tokens` pending tokens, or a refresh that judged some and committed `tokens` beyond
  // them.
  void record_partial(double ms, int64_t tokens);
  void record_refresh(double ms, const VerifyOutcome& verify_outcome, int64_t tokens_beyond, bool all_right);

 private:
  // The time of a refresh by the rows that it judges: a line with decay, flat until a slope is measured.
  struct Line {
    RunningMean ms, rows, square, product;
    int64_t samples = 0;
    void add(double x, double y);
    double at(double x) const;
  };
  // Judged and rejected tokens in one range of ages; decaying.
  struct Judged {
    double all = 0, wrong = 0;
    void forget(double share) { all *= share, wrong *= share; }
  };
  static constexpr int64_t kAges = 8;  // of one range

  void learn(const VerifyOutcome& verify_outcome);
  double chance_wrong(int64_t age) const;
  int64_t best() const;
  int64_t first_streamed() const;
  int64_t next() const;

  const bool streams_;
  const double usually_wrong_;  // the share of judged tokens
  RunningCost partial_ms_, full_ms_;
  Line refresh_ms_;
  RunningMean partial_tokens_, beyond_tokens_, full_tokens_;
  Judged judged_;
  std::array<Judged, kMaxPending / kAges> by_age_{};
  double since_partial_ms_ = 0, since_full_ms_ = 0;
  int64_t pending_;
};

}  // namespace headrace
