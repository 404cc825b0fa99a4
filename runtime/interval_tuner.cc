#include "runtime/interval_tuner.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

constexpr double kForget = 0.9, kForgetJudged = 0.95;

}  // namespace

void IntervalTuner::Mean::add(double sample) {
  if (weight == 1) sum = weight = 0;  // of the first alone: measured again
  sum = sum * kForget + sample;
  weight = weight * kForget + 1;
}

void IntervalTuner::record_partial(double ms, int64_t tokens) {
  ++partials_;
  partial_ms_.add(ms);
  partial_tokens_.add(static_cast<double>(tokens));
}

void IntervalTuner::record_refresh(double ms, const Judgement& judgement, int64_t tokens_beyond, bool all_right) {
  ++refreshes_;
  refresh_ms_.add(ms);
  if (all_right) refresh_tokens_.add(static_cast<double>(tokens_beyond));
  judged_ = judged_ * kForgetJudged + static_cast<double>(judgement.judged);
  overturned_ = overturned_ * kForgetJudged + static_cast<double>(judgement.overturned);
  if (partials_ > 0) choose();
}

// After m partial steps of k tokens each, u = m k are pending, each right with a chance of q if all before it are. A
// refresh confirms q + q^2 + … + q^u of them and the target's own token, and with a chance of q^u what its tree adds.
void IntervalTuner::choose() {
  const double k = std::max(1.0, partial_tokens_.value(1)), s = partial_ms_.value(0), r = refresh_ms_.value(0);
  const double beyond = std::max(0.0, refresh_tokens_.value(k) - 1);
  const double q = 1 - std::clamp(overturned_ / judged_, 1e-4, 0.9);
  double best = 0;
  for (int64_t steps = 0; static_cast<double>(steps) * k <= static_cast<double>(kMostPending); ++steps) {
    const double pending = static_cast<double>(steps) * k, all = std::pow(q, pending);
    const double confirmed = q * (1 - all) / (1 - q) + 1 + all * beyond;
    const double rate = confirmed / (r + static_cast<double>(steps) * s);
    if (rate <= best) continue;
    best = rate;
    pending_ = static_cast<int64_t>(std::lround(pending));
  }
}

}  // namespace headrace
