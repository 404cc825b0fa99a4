// `--refresh-interval auto` against every fixed number of pending tokens, on machines and texts that are made up: costs
// as a GPU that streams, a GPU with resident KV, and a CPU have them; pending tokens that a refresh overturns by
// chance.
#include "runtime/speculation/policy/interval_tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache/partial.h"

namespace headrace {
namespace {

struct Machine {
  const char* name;
  bool streams;
  double partial_ms;   // a step over the partial KV
  double refresh_ms;   // one that judges pending tokens,
  double per_row_ms;   // and for each of them
  double full_ms = 0;  // a refresh that has none to judge; 0: as the others. Its tree may be a smaller one
  double full(double rows) const { return rows > 0 || full_ms == 0 ? refresh_ms + rows * per_row_ms : full_ms; }
};

// Tokens a step, and the chance that a pending token is rejected: by the tokens of the text before it, and by those
// since the refresh.
struct Text {
  std::string name;
  double tokens_a_step;
  std::function<double(int64_t said, int64_t since)> overturn;
};

Text steady(double tokens_a_step, double chance) {
  return {str(chance, " overturned"), tokens_a_step, [chance](int64_t, int64_t) { return chance; }};
}

constexpr int64_t kTree = 8;  // most tokens that a step may add
constexpr int kMaxGuesses = 5;

// Rough: times scatter by a quarter, and a step in a hundred takes twenty times as long.
enum class Times { kEven, kRough };

// A run, step by step: what decode_loop.cc does, with dice.
class Run {
 public:
  Run(const Machine& machine, const Text& text, unsigned seed, Times times)
      : machine_(machine),
        text_(text),
        random_(seed),
        times_(times),
        guesses_(kMaxGuesses, (text.tokens_a_step - 1) / kMaxGuesses),
        noise_(1, times == Times::kRough ? 0.25 : 0.05) {}

  // With the tuner's choice, or a fixed one.
  void until(int64_t tokens, IntervalTuner* tuner, int64_t fixed) {
    while (said_ < tokens) {
      const int64_t most = std::min(tuner ? tuner->pending() : fixed, kMaxPending);
      EXPECT_GE(most, 0);
      // What would end the run is pending as all else is; the refresh comes early.
      int64_t pending = 0;
      while (pending < most && pending + kTree <= kMaxPending && said_ + pending < tokens) pending += partial(tuner);
      refresh(pending, tuner);
    }
  }
  double tokens_per_s() const { return static_cast<double>(said_) / ms_ * 1e3; }

 private:
  int64_t tokens() { return 1 + guesses_(random_); }
  // The first of a kind pays for something that comes once, and what else runs may interrupt: not counted against the
  // choice, but in what it is told.
  double timed(double ms, bool* first) {
    const double here = ms * std::max(0.1, noise_(random_));
    const bool interrupted = times_ == Times::kRough && random_() % 100 == 0;
    ms_ += here;
    return std::exchange(*first, false) ? 5 * here : interrupted ? 20 * here : here;
  }
  int64_t partial(IntervalTuner* tuner) {
    const int64_t added = tokens();
    const double ms = timed(machine_.partial_ms, &first_partial_);
    if (tuner) tuner->record_partial(ms, added);
    return added;
  }
  void refresh(int64_t pending, IntervalTuner* tuner) {
    std::uniform_real_distribution<double> uniform;
    VerifyOutcome verify_outcome;
    while (verify_outcome.judged < pending && verify_outcome.rejected == 0) {
      if (uniform(random_) < text_.overturn(said_ + verify_outcome.judged, verify_outcome.judged))
        ++verify_outcome.rejected;
      ++verify_outcome.judged;
    }
    const bool all = verify_outcome.rejected == 0;
    const int64_t beyond = all ? tokens() : 0;
    said_ += verify_outcome.judged + beyond;  // the rejected one's place is taken by the right one
    verify_outcome.discarded = pending - verify_outcome.judged;
    const double ms = timed(machine_.full(static_cast<double>(pending)), pending > 0 ? &first_refresh_ : &first_full_);
    if (tuner) tuner->record_refresh(ms, verify_outcome, all ? beyond : verify_outcome.judged - pending, all);
  }

  const Machine& machine_;
  const Text& text_;
  std::mt19937 random_;
  const Times times_;
  std::binomial_distribution<int> guesses_;
  std::normal_distribution<double> noise_;
  int64_t said_ = 0;
  double ms_ = 0;
  bool first_partial_ = true, first_refresh_ = true, first_full_ = true;
};

struct Best {
  double tokens_per_s = 0;
  int64_t pending = 0;
};

// Runs of `tokens` tokens with each fixed number, many of them.
Best best_fixed(const Machine& machine, const Text& text, int64_t tokens) {
  Best best;
  const unsigned runs = static_cast<unsigned>(std::max<int64_t>(8, 20'000 / tokens));
  for (const int64_t pending : {0, 8, 20, 40, 64, 128}) {
    double sum = 0;
    for (unsigned seed = 0; seed < runs; ++seed) {
      Run run(machine, text, seed + 1000, Times::kEven);
      run.until(tokens, nullptr, pending);
      sum += run.tokens_per_s() / runs;
    }
    if (sum > best.tokens_per_s) best = {sum, pending};
  }
  return best;
}

struct Tuned {
  double tokens_per_s = 0;
  int64_t pending = 0;  // chosen at last, the mean of the runs
};
Tuned tuned(const Machine& machine, const Text& text, int64_t tokens, unsigned runs, Times times,
            const PartialShape& partial = {}) {
  Tuned mean;
  for (unsigned seed = 1; seed <= runs; ++seed) {
    IntervalTuner tuner(machine.streams, partial);
    Run run(machine, text, seed, times);
    run.until(tokens, &tuner, 0);
    mean.tokens_per_s += run.tokens_per_s() / runs;
    mean.pending += tuner.pending();
  }
  mean.pending /= runs;
  return mean;
}

const Machine kMachines[] = {
    {"streamed", true, 7, 150, 0.02}, {"half streamed", true, 7, 50, 0.02},
    {"resident", false, 7, 14, 0.02}, {"cpu without a draft", false, 19, 20, 2.5},
    {"cpu", false, 19, 120, 2.5, 28},
};
std::vector<Text> texts() {
  std::vector<Text> all;
  for (const double tokens : {1.0, 3.5}) {
    for (const double chance : {0.0, 0.01, 0.05, 0.12}) {
      all.push_back(steady(tokens, chance));
    }
  }
  return all;
}

// Plain decoding is among the fixed ones: no pending tokens at all.
void compare(const Machine& machine, const Text& text, int64_t tokens, unsigned runs, double share,
             Times times = Times::kEven) {
  const Best best = best_fixed(machine, text, tokens);
  const Tuned chosen = tuned(machine, text, tokens, runs, times);
  EXPECT_GT(chosen.tokens_per_s, share * best.tokens_per_s)
      << machine.name << ", " << text.name << ", " << text.tokens_a_step << " tokens a step: " << chosen.pending
      << " pending at last, best " << best.pending;
}

// 50 to 1,000 refreshes.
constexpr int64_t kLong = 6000;

TEST(IntervalTuner, ComesCloseToTheBestFixedInterval) {
  for (const Machine& machine : kMachines) {
    for (const Text& text : texts()) compare(machine, text, kLong, 8, 0.95);
  }
}

// Ten refreshes, if so many.
TEST(IntervalTuner, IsGoodInAShortAnswer) {
  for (const Machine& machine : kMachines) {
    for (const Text& text : texts()) compare(machine, text, 256, 60, machine.streams ? 0.86 : 0.83);
  }
}

// With a copy of all rows few tokens are overturned, and the first refresh already comes late enough: answers of a few
// refreshes come close to the best interval, which with int8 is more than a hundred tokens.
TEST(IntervalTuner, PendsLongWithACopy) {
  const Machine machine{"all rows streamed", true, 7, 330, 0.05};
  const struct {
    DType type;
    double chance;
    int64_t least, most;
  } kinds[] = {{DType::kInt8, 0.003, 100, kMaxPending}, {DType::kInt4, 0.025, 40, 100}};
  for (const auto& kind : kinds) {
    const PartialShape copy{.copy = kind.type};
    const Text text = steady(1, kind.chance);
    for (const int64_t tokens : {int64_t{512}, kLong}) {
      const Tuned chosen = tuned(machine, text, tokens, tokens == kLong ? 8 : 40, Times::kEven, copy);
      EXPECT_GT(chosen.tokens_per_s, (tokens == kLong ? 0.95 : 0.9) * best_fixed(machine, text, tokens).tokens_per_s);
      EXPECT_GE(chosen.pending, kind.least) << dtype_name(kind.type) << " after " << tokens;
      EXPECT_LE(chosen.pending, kind.most) << dtype_name(kind.type) << " after " << tokens;
    }
    EXPECT_GE(IntervalTuner(true, copy).pending(), kind.least) << "at first";
  }
}

// Texts that change in the middle, either way, and one whose tokens are the less right the older the partial KV is.
TEST(IntervalTuner, FollowsTheText) {
  for (const Machine& machine : kMachines) {
    for (const double tokens : {1.0, 3.5}) {
      const Text all[] = {
          {"worse", tokens, [](int64_t said, int64_t) { return said < kLong / 2 ? 0.0 : 0.12; }},
          {"better", tokens, [](int64_t said, int64_t) { return said < kLong / 2 ? 0.12 : 0.0; }},
          {"useless at first", tokens, [](int64_t said, int64_t) { return said < kLong / 6 ? 0.6 : 0.01; }},
          {"ageing", tokens, [](int64_t, int64_t age) { return 0.005 + 0.001 * static_cast<double>(age); }},
      };
      for (const Text& text : all) compare(machine, text, kLong, 8, 0.94);
    }
  }
}

TEST(IntervalTuner, BearsRoughTimes) {
  for (const Machine& machine : kMachines) {
    compare(machine, steady(3.5, 0.01), kLong, 8, 0.93, Times::kRough);
    compare(machine, steady(1.0, 0.05), kLong, 8, 0.93, Times::kRough);
  }
}

// The context may outgrow the budget while the answer is written: then the first refresh has nothing to judge.
TEST(IntervalTuner, StartsWithARefreshThatJudgesNothing) {
  for (const bool streams : {false, true}) {
    IntervalTuner tuner(streams);
    const int64_t first = tuner.pending();
    tuner.record_refresh(150, {}, 1, true);
    tuner.record_refresh(150, {}, 1, true);
    EXPECT_GT(tuner.pending(), 4) << streams << ", at first " << first;
    EXPECT_LE(tuner.pending(), kMaxPending);
  }
}

// An approximate run's refreshes count what was wrong, and throw nothing away: the same rule, of what they count.
TEST(IntervalTuner, TakesSeveralWrongTokensOfOneRefresh) {
  IntervalTuner few(true), many(true);
  for (int i = 0; i < 30; ++i) {
    for (IntervalTuner* tuner : {&few, &many}) {
      const int64_t pending = tuner->pending();
      for (int64_t n = 0; n < pending; ++n) tuner->record_partial(7, 1);
      const int64_t wrong = std::min<int64_t>(pending, tuner == &few ? 0 : pending / 5 + 2);
      tuner->record_refresh(150, {.judged = pending, .rejected = wrong, .discarded = 0}, 1, true);
    }
  }
  EXPECT_GT(few.pending(), 100);
  EXPECT_LT(many.pending(), 20);
  EXPECT_GT(many.pending(), 0);
}

}  // namespace
}  // namespace headrace
