#include "runtime/speculation/policy/interval_tuner.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

constexpr double kForgetJudged = 0.9;  // decay per refresh
constexpr double kMaxJudged = 300;     // limit, since the text may change
constexpr double kPriorJudged = 10;    // prior: as if this many had been judged before
constexpr double kWrongOfBlocks = 0.03, kWrongOfInt4 = 0.04, kWrongOfInt8 = 0.009;  // their share that was wrong
constexpr double kPriorOfAge = 60;                  // prior per age, with the overall share
constexpr double kRowsKnown = 16;                   // spread of rows from which a slope is trusted
constexpr int64_t kFirstStreamed = 64, kFirst = 8;  // pending tokens
constexpr int64_t kFirstOfInt8 = 128;               // pending tokens, where passes stream
constexpr double kMaxOfFirst = 25;                  // cap for the first refresh, in partial steps
constexpr int64_t kKnown = 2;                       // samples from which a refresh's cost is known
constexpr double kTrial = 100;                      // time between two trials, in multiples of a trial's time

double usually_wrong(const PartialShape& partial) {
  if (!partial.copy) return kWrongOfBlocks;
  return partial.copy == DType::kInt4 ? kWrongOfInt4 : kWrongOfInt8;
}

}  // namespace

void IntervalTuner::Line::add(double x, double y) {
  if (samples > 1) y = std::min(y, RunningCost::kMaxTimes * at(x));
  if (++samples == 2) ms = rows = square = product = {};
  ms.add(y);
  rows.add(x);
  square.add(x * x);
  product.add(x * y);
}

double IntervalTuner::Line::at(double x) const {
  const double mean = rows.value(0), y = ms.value(0);
  const double spread = square.value(0) - mean * mean + kRowsKnown * kRowsKnown / std::max(1.0, rows.weight);
  const double slope = std::clamp((product.value(0) - mean * y) / spread, 0.0, mean > 0 ? y / mean : 0.0);
  return y + slope * (x - mean);
}

// If nothing streams, steps over the full KV are cheap, and show whether partial ones pay.
IntervalTuner::IntervalTuner(bool streams, const PartialShape& partial)
    : streams_(streams), usually_wrong_(usually_wrong(partial)), pending_(streams ? first_streamed() : 0) {}

void IntervalTuner::record_partial(double ms, int64_t tokens) {
  partial_ms_.add(ms);
  partial_tokens_.add(static_cast<double>(tokens));
  since_partial_ms_ = 0;
  since_full_ms_ += ms;
}

void IntervalTuner::record_refresh(double ms, const VerifyOutcome& verify_outcome, int64_t tokens_beyond,
                                   bool all_right) {
  const int64_t rows = verify_outcome.judged + verify_outcome.discarded;
  since_partial_ms_ += ms;
  since_full_ms_ += ms;
  if (rows == 0) {
    since_full_ms_ = 0;
    full_ms_.add(ms);
    full_tokens_.add(static_cast<double>(tokens_beyond));
  } else {
    const double most = refresh_ms_.samples > 0 ? ms : kMaxOfFirst * partial_ms_.value();
    refresh_ms_.add(static_cast<double>(rows), std::min(ms, most));
    if (all_right) beyond_tokens_.add(static_cast<double>(tokens_beyond));
    learn(verify_outcome);
  }
  pending_ = next();
}

void IntervalTuner::learn(const VerifyOutcome& verify_outcome) {
  const double now = static_cast<double>(verify_outcome.judged), wrong = static_cast<double>(verify_outcome.rejected);
  const double share = std::min(kForgetJudged, kMaxJudged / (judged_.all + now));
  judged_.forget(share);
  judged_.all += now;
  judged_.wrong += wrong;
  for (Judged& range : by_age_) range.forget(share);
  if (verify_outcome.rejected > 1) return;  // of an approximate run: the rejected ones cannot be told apart
  for (int64_t first = 0; first < verify_outcome.judged; first += kAges) {
    by_age_[static_cast<size_t>(first / kAges)].all +=
        static_cast<double>(std::min(kAges, verify_outcome.judged - first));
  }
  if (wrong > 0) by_age_[static_cast<size_t>((verify_outcome.judged - 1) / kAges)].wrong += 1;
}

double IntervalTuner::chance_wrong(int64_t age) const {
  const double any = (judged_.wrong + kPriorJudged * usually_wrong_) / (judged_.all + kPriorJudged);
  const Judged& range = by_age_[static_cast<size_t>(age / kAges)];
  return std::min((range.wrong + kPriorOfAge * any) / (range.all + kPriorOfAge), 1.0);
}

// After m partial steps of k tokens each, u = m k tokens are pending, each correct with some chance if all before it
// are. A refresh confirms those up to the first wrong one, which the target's own token replaces; if none is wrong, it
// confirms all, plus the yield of its tree.
int64_t IntervalTuner::best() const {
  const double k = std::max(1.0, partial_tokens_.value(1)), s = partial_ms_.value();
  const double beyond = std::max(1.0, beyond_tokens_.value(k));
  double best_rate = full_ms_.samples > 0 ? full_tokens_.value(k) / full_ms_.value() : beyond / refresh_ms_.at(0);
  double right = 1, sum = 0;  // the chance that all are correct; expected tokens before a wrong one
  int64_t best = 0, rows = 0;
  for (int64_t steps = 1; static_cast<double>(steps) * k <= static_cast<double>(kMaxPending); ++steps) {
    const double pending = static_cast<double>(steps) * k;
    for (; rows < std::llround(pending); ++rows) {
      right *= 1 - chance_wrong(rows);
      sum += right;
    }
    const double tokens = sum + 1 - right + right * beyond;
    const double rate = tokens / (refresh_ms_.at(pending) + static_cast<double>(steps) * s);
    if (rate <= best_rate) continue;
    best_rate = rate;
    best = std::llround(pending - (k - 1) / 2);  // one step more if the last ones yielded few
  }
  return best;
}

int64_t IntervalTuner::first_streamed() const { return usually_wrong_ > kWrongOfInt8 ? kFirstStreamed : kFirstOfInt8; }

int64_t IntervalTuner::next() const {
  if (!streams_ && full_ms_.samples < kKnown) return 0;
  if (refresh_ms_.samples < (streams_ ? 1 : kKnown)) return streams_ ? first_streamed() : kFirst;
  const int64_t best = this->best();
  const double trial_ms = partial_ms_.value() + refresh_ms_.at(1);
  if (best == 0) return since_partial_ms_ > kTrial * trial_ms ? 1 : 0;
  return !streams_ && since_full_ms_ > kTrial * full_ms_.value() ? 0 : best;
}

}  // namespace headrace
