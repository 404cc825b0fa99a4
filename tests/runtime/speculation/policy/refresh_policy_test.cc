// `--refresh-interval auto` against every fixed number of pending tokens, on machines and texts that are made up: costs
// as a GPU that streams, a GPU with resident KV, and a CPU have them; pending tokens that a refresh overturns by
// chance.
#include "runtime/speculation/policy/refresh_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache/partial.h"
#include "runtime/speculation/policy/chain_forecast.h"
#include "tests/support/sanitized.h"

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

// A run with a chain of pending tokens, step by step: what decode_loop.cc does, with dice.
class Run {
 public:
  Run(const Machine& machine, const Text& text, unsigned seed, Times times)
      : machine_(machine),
        text_(text),
        random_(seed),
        times_(times),
        guesses_(kMaxGuesses, (text.tokens_a_step - 1) / kMaxGuesses),
        noise_(1, times == Times::kRough ? 0.25 : 0.05) {}

  void until(int64_t tokens, const PartialShape& partial) {
    RefreshPolicy policy(machine_.streams);
    ChainForecast chain(partial);
    until(tokens, &policy, &chain, 0);
  }
  void until(int64_t tokens, int64_t fixed) { until(tokens, nullptr, nullptr, fixed); }
  double ms() const { return ms_; }
  int64_t refreshes() const { return refreshes_; }

 private:
  int64_t tokens() { return 1 + (text_.tokens_a_step > 1 ? guesses_(random_) : 0); }
  // The first of a kind pays for something that comes once, and what else runs may interrupt: not counted against the
  // choice, but in what it is told.
  double timed(double ms, bool* first) {
    const double here = ms * std::max(0.1, noise_(random_));
    const bool interrupted = times_ == Times::kRough && random_() % 100 == 0;
    ms_ += here;
    return std::exchange(*first, false) ? 5 * here : interrupted ? 20 * here : here;
  }
  static bool pays(const RefreshPolicy& policy, const ChainForecast& chain, int64_t pending, int64_t end) {
    return policy.pays(chain.next_step(pending)) || (end <= kMaxPending && policy.pays(chain.to_the_end(pending, end)));
  }
  void until(int64_t all, RefreshPolicy* policy, ChainForecast* chain, int64_t fixed) {
    const int64_t tree = text_.tokens_a_step > 1 ? kTree : 1;
    while (said_ < all) {
      if (policy ? policy->full() : fixed == 0) {
        const int64_t added = tokens();
        const double ms = timed(machine_.full(0), &first_full_);
        if (policy) policy->record_full(ms, added);
        said_ += added;
        continue;
      }
      int64_t pending = 0;
      const int64_t end = all - said_;  // what would end the run is pending as all else is
      while (pending + tree <= kMaxPending && pending < end &&
             (policy ? pays(*policy, *chain, pending, end) : pending < fixed)) {
        const int64_t added = tokens();
        const double ms = timed(machine_.partial_ms, &first_partial_);
        if (policy) policy->record_partial(ms);
        if (chain) chain->record_partial(added);
        pending += added;
      }
      refresh(pending, policy, chain);
    }
  }
  void refresh(int64_t pending, RefreshPolicy* policy, ChainForecast* chain) {
    std::uniform_real_distribution<double> uniform;
    VerifyOutcome outcome;
    while (outcome.judged < pending && outcome.rejected == 0) {
      if (uniform(random_) < text_.overturn(said_ + outcome.judged, outcome.judged)) ++outcome.rejected;
      ++outcome.judged;
    }
    const int64_t beyond = outcome.rejected == 0 ? tokens() : 0;
    const int64_t committed = outcome.judged + beyond;  // the rejected one's place is taken by the right one
    outcome.discarded = pending - outcome.judged;
    const double ms = timed(machine_.full(static_cast<double>(pending)), &first_refresh_);
    if (chain) chain->record_refresh(outcome, beyond);
    if (policy) policy->record_refresh(ms, pending, static_cast<double>(committed), committed);
    said_ += committed;
    ++refreshes_;
  }

  const Machine& machine_;
  const Text& text_;
  std::mt19937 random_;
  const Times times_;
  std::binomial_distribution<int> guesses_;
  std::normal_distribution<double> noise_;
  int64_t said_ = 0, refreshes_ = 0;
  double ms_ = 0;
  bool first_partial_ = true, first_refresh_ = true, first_full_ = true;
};

// The mean time of runs of `tokens` tokens.
double fixed_ms(const Machine& machine, const Text& text, int64_t tokens, int64_t pending) {
  const unsigned runs = static_cast<unsigned>(std::max<int64_t>(8, 20'000 / tokens));
  double sum = 0;
  for (unsigned seed = 0; seed < runs; ++seed) {
    Run run(machine, text, seed + 1000, Times::kEven);
    run.until(tokens, pending);
    sum += run.ms() / runs;
  }
  return sum;
}

// With the best fixed number of pending tokens.
double best_ms(const Machine& machine, const Text& text, int64_t tokens) {
  double best = std::numeric_limits<double>::infinity();
  for (const int64_t pending : {0, 8, 20, 32, 48, 64, 96, 128}) {
    best = std::min(best, fixed_ms(machine, text, tokens, pending));
  }
  return best;
}

struct Chosen {
  double ms = 0, pending = 0;  // pending tokens a refresh
};
Chosen chosen(const Machine& machine, const Text& text, int64_t tokens, unsigned runs, Times times,
              const PartialShape& partial = {}) {
  Chosen mean;
  for (unsigned seed = 1; seed <= runs; ++seed) {
    Run run(machine, text, seed, times);
    run.until(tokens, partial);
    mean.ms += run.ms() / runs;
    mean.pending += static_cast<double>(tokens) / static_cast<double>(std::max<int64_t>(1, run.refreshes())) / runs;
  }
  return mean;
}

// A refresh takes longer for each token that it judges where compute binds it: an H200 with most of the KV cache
// resident, and CPUs.
const Machine kMachines[] = {
    {"streamed", true, 7, 150, 0.02},          {"half streamed", true, 7, 50, 0.02},
    {"bound by compute", true, 5.6, 15, 0.17}, {"resident", false, 7, 14, 0.02},
    {"cpu that streams", true, 19, 60, 2.5},   {"cpu without a draft", false, 19, 20, 2.5},
    {"cpu", false, 19, 120, 2.5, 28},
};
// Sanitizers need each decision once: a machine that streams and one that does not.
std::vector<Machine> machines() {
  if (testing::kSanitized) return {kMachines[0], kMachines[3]};
  return {std::begin(kMachines), std::end(kMachines)};
}

// Plain decoding is among the fixed ones: no pending tokens at all.
void compare(const Machine& machine, const Text& text, int64_t tokens, unsigned runs, double share,
             Times times = Times::kEven, const PartialShape& partial = {}) {
  const double best = best_ms(machine, text, tokens);
  const Chosen mine = chosen(machine, text, tokens, runs, times, partial);
  EXPECT_LT(mine.ms, best / share) << machine.name << ", " << text.name << ", " << text.tokens_a_step
                                   << " tokens a step, " << tokens << " tokens: " << mine.pending << " a refresh, "
                                   << best / mine.ms;
}

// 50 to 1,000 refreshes.
constexpr int64_t kLong = 6000;

// Where nothing is ever overturned, the policy goes on to expect it now and then.
TEST(RefreshPolicy, ComesCloseToTheBestFixedInterval) {
  for (const Machine& machine : machines()) {
    for (const double tokens : {1.0, 3.5}) {
      for (const double chance : {0.01, 0.05, 0.12}) compare(machine, steady(tokens, chance), kLong, 8, 0.94);
      compare(machine, steady(tokens, 0), kLong, 8, 0.88);
    }
  }
}

// Ten refreshes, if so many.
TEST(RefreshPolicy, IsGoodInAShortAnswer) {
  for (const Machine& machine : machines()) {
    for (const double tokens : {1.0, 3.5}) {
      for (const double chance : {0.05, 0.08, 0.12})
        compare(machine, steady(tokens, chance), 256, 60, machine.streams ? 0.92 : 0.83);
    }
  }
}

// Texts that change in the middle, either way, and one whose tokens are the less right the older the partial KV is.
TEST(RefreshPolicy, FollowsTheText) {
  for (const Machine& machine : machines()) {
    for (const double tokens : {1.0, 3.5}) {
      const Text all[] = {
          {"worse", tokens, [](int64_t said, int64_t) { return said < kLong / 2 ? 0.0 : 0.12; }},
          {"better", tokens, [](int64_t said, int64_t) { return said < kLong / 2 ? 0.12 : 0.0; }},
          {"useless at first", tokens, [](int64_t said, int64_t) { return said < kLong / 6 ? 0.6 : 0.01; }},
          {"ageing", tokens, [](int64_t, int64_t age) { return 0.005 + 0.001 * static_cast<double>(age); }},
      };
      for (const Text& text : all) compare(machine, text, kLong, 8, machine.streams ? 0.95 : 0.92);
    }
  }
}

TEST(RefreshPolicy, BearsRoughTimes) {
  for (const Machine& machine : machines()) {
    compare(machine, steady(3.5, 0.01), kLong, 8, 0.92, Times::kRough);
    compare(machine, steady(1.0, 0.05), kLong, 8, 0.92, Times::kRough);
  }
}

// With copies, answers of one refresh to twenty.
TEST(RefreshPolicy, KnowsWhatCopiesConfirm) {
  const struct {
    DType type;
    double chance;
  } copies[] = {{DType::kInt8, 0.004}, {DType::kInt8, 0.009}, {DType::kInt8, 0.016}, {DType::kInt4, 0.04}};
  for (const auto& copy : copies) {
    for (const double refreshes : {8, 14, 26}) {
      if (testing::kSanitized && refreshes != 14) continue;
      const Machine machine{"a copy", true, 5.6, 5.6 * refreshes, 0};
      for (const double tokens : {1.0, 2.4}) {
        for (const int64_t length : {64, 256})
          compare(machine, steady(tokens, copy.chance), length, 200, 0.88, Times::kEven, {.copy = copy.type});
        compare(machine, steady(tokens, copy.chance), kLong, 8, 0.92, Times::kEven, {.copy = copy.type});
      }
    }
  }
}

// ---- one decision after another -------------------------------------------------------------------------------------

// A policy that streams, after `refreshes` refreshes of 100 ms and ten partial steps of 10 ms each, and after so many
// further steps.
RefreshPolicy after(int refreshes, double expected, int64_t tokens, int steps) {
  RefreshPolicy policy(true);
  for (int i = 0; i < refreshes; ++i) {
    for (int step = 0; step < 10; ++step) policy.record_partial(10);
    policy.record_refresh(100, 0, expected, tokens);
  }
  for (int step = 0; step < steps; ++step) policy.record_partial(10);
  return policy;
}

// Until a refresh has been timed, it is expected to take as long as twenty steps.
TEST(RefreshPolicy, GrowsBeforeARefreshHasBeenTimed) {
  EXPECT_TRUE(after(0, 0, 0, 0).pays({.expected = 1, .more = 0})) << "nothing has grown";
  EXPECT_FALSE(after(0, 0, 0, 3).pays({.expected = 5, .more = 0})) << "nothing is left to grow";
  EXPECT_TRUE(after(0, 0, 0, 10).pays({.expected = 10, .more = 0.35}));  // 10 tokens in 30 steps' time
  EXPECT_FALSE(after(0, 0, 0, 10).pays({.expected = 10, .more = 0.3}));
}

// 10 tokens for a refresh of 100 ms and 10 steps of 10 ms: a step that adds less than half a token does not pay.
TEST(RefreshPolicy, AsksWhatTimeIsWorth) {
  const RefreshPolicy policy = after(10, 10, 10, 10);
  EXPECT_TRUE(policy.pays({.expected = 10, .more = 0.55}));
  EXPECT_FALSE(policy.pays({.expected = 10, .more = 0.45}));
  // What is to come counts a little: a tree that promises little more than the root sets no measure of its own.
  EXPECT_FALSE(policy.pays({.expected = 2, .more = 0.35}));
  EXPECT_TRUE(policy.pays({.expected = 2, .more = 0.45}));
  // Steps to the end of the run, which save a refresh that is worth five tokens.
  EXPECT_FALSE(policy.pays({.expected = 10, .more = 6, .steps = 20, .saves = 0.7}));
  EXPECT_TRUE(policy.pays({.expected = 10, .more = 6, .steps = 20, .saves = 0.9}));
}

// Where half of what is expected comes, a step must promise twice as much, nearly.
TEST(RefreshPolicy, BelievesWhatHasComeTrue) {
  const RefreshPolicy policy = after(20, 20, 10, 10);
  EXPECT_TRUE(policy.pays({.expected = 20, .more = 1.05}));
  EXPECT_FALSE(policy.pays({.expected = 20, .more = 0.85}));
}

// A first step or refresh that paid for what comes once does not stand for the rest, nor does one of a busy machine.
TEST(RefreshPolicy, IsNotMisledByOneSlowStep) {
  RefreshPolicy calm(true), shaken(true);
  for (RefreshPolicy* policy : {&calm, &shaken}) {
    const double once = policy == &shaken ? 20 : 1;
    for (const double times : {once, 1.0, 1.0}) {
      policy->record_partial(10 * times);
      for (int i = 0; i < 5; ++i) policy->record_partial(10);
      policy->record_refresh(100 * times, 0, 10, 10);
    }
    for (int i = 0; i < 6; ++i) policy->record_partial(10);
  }
  for (const double more : {0.3, 0.8}) {
    EXPECT_EQ(calm.pays({.expected = 10, .more = more}), shaken.pays({.expected = 10, .more = more})) << more;
  }
}

TEST(RefreshPolicy, TakesTheCostsThatItIsGiven) {
  RefreshPolicy policy(true, {.partial_ms = 10, .refresh_ms = 100});
  for (int step = 0; step < 10; ++step) policy.record_partial(1);
  policy.record_refresh(1, 0, 10, 10);
  for (int step = 0; step < 10; ++step) policy.record_partial(1);
  EXPECT_TRUE(policy.pays({.expected = 10, .more = 0.55}));
  EXPECT_FALSE(policy.pays({.expected = 10, .more = 0.45}));
}

// A step over the partial KV of 1 ms and a refresh that brings 8 tokens.
void cycle(RefreshPolicy* policy, double ms) {
  policy->record_partial(1);
  policy->record_refresh(ms - 1, 8, 8, 8);
}
int64_t full_steps(RefreshPolicy* policy, double ms) {
  int64_t steps = 0;
  for (; policy->full(); ++steps) policy->record_full(ms, 1);
  return steps;
}

TEST(RefreshPolicy, TakesWhatCostsLessAToken) {
  for (const double ms : {120.0, 400.0}) {  // 15 and 50 ms a token
    RefreshPolicy policy(false);
    int64_t full = 0, cycles = 0;
    for (; full + 8 * cycles < 1000; ++cycles) {
      full += full_steps(&policy, 22);
      cycle(&policy, ms);
    }
    const double share = static_cast<double>(full) / static_cast<double>(full + 8 * cycles);
    EXPECT_GE(share, ms < 200 ? 0 : 0.9) << ms;
    EXPECT_LE(share, ms < 200 ? 0.01 : 1) << ms;
  }
  EXPECT_FALSE(RefreshPolicy(true).full()) << "where passes stream, partial steps pay";
}

// What costs more is tried ever less often, and what has become better is found.
TEST(RefreshPolicy, LooksAgain) {
  RefreshPolicy policy(false);
  full_steps(&policy, 20);
  int64_t before = 0;
  for (int i = 0; i < 6; ++i) {
    cycle(&policy, 1000);
    const int64_t steps = full_steps(&policy, 20);
    EXPECT_GT(steps, before);
    before = steps;
  }
  cycle(&policy, 50);
  EXPECT_FALSE(policy.full());
  cycle(&policy, 1000);
  EXPECT_LT(full_steps(&policy, 20), before);
}

// The rate of the copy's type until the run has seen others.
TEST(ChainForecast, ExpectsWhatCopiesConfirmed) {
  ChainForecast int8({.copy = DType::kInt8}), int4({.copy = DType::kInt4}), blocks({.blocks = 256});
  EXPECT_NEAR(int8.next_step(100).expected, 54.2, 1);  // (1 - 0.986^100) / 0.014, and 0.986^100 beyond
  EXPECT_GT(int8.next_step(100).expected, 1.8 * int4.next_step(100).expected);
  EXPECT_GT(int4.next_step(100).expected, 2 * blocks.next_step(100).expected);
  for (int i = 0; i < 20; ++i) int4.record_refresh({.judged = 100}, 1);
  EXPECT_GT(int4.next_step(100).expected, 90) << "nothing was overturned";
}

}  // namespace
}  // namespace headrace
