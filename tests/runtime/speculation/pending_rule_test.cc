// A tree of pending tokens and the rule that has it judged, together, over dice: texts whose partial KV is now and then
// unlike the full one, and more so the longer no refresh has chosen its blocks. The rule is to give nearly as many
// tokens a second as the best fixed interval, whatever steps cost, with a draft and without.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/speculation/pending_tree.h"
#include "runtime/speculation/policy/refresh_policy.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

constexpr int64_t kTokens = 2520;
constexpr uint32_t kTexts = 4;

struct Machine {
  double partial_ms, refresh_ms;
  bool drafts;
  double noise = 0;  // of a copy of all rows, the same everywhere; 0: of blocks
};

PendingTreeLimits limits_of(const Machine& machine) {
  if (machine.noise == 0) return {.width = 8, .grown = 384, .nodes = 384};
  return {.width = 8, .grown = 384, .nodes = 384, .least = 0.02, .sharpness = 16, .unranked = 0.0005};
}

class DicedText {
 public:
  DicedText(const Machine& machine, int64_t interval, uint32_t seed)
      : machine_(machine), interval_(interval), random_(seed), tree_(limits_of(machine)) {}

  // Tokens committed a second, over so many tokens.
  double run(int64_t tokens) {
    RefreshPolicy rule(true);
    double ms = 0;
    int64_t committed = 0;
    while (committed < tokens) {
      noise_ = kNoise[static_cast<size_t>(committed / kPassage) % kNoise.size()];
      tree_.begin(0);
      truths_.clear();
      const int64_t most_depth = interval_ > 0 ? std::min<int64_t>(interval_, 191) : 191;
      while (goes_on(rule, most_depth)) {
        const int64_t first = tree_.extend(most_depth);
        compute(first);
        if (!tree_.followed().nodes.empty()) forward_.add(static_cast<double>(tree_.followed().nodes.size()));
        rule.record_partial(machine_.partial_ms);
        ms += machine_.partial_ms;
      }
      const double expected = tree_.expected(most_depth);
      predicted_ += expected;
      const int64_t right = judge(most_depth);
      rule.record_refresh(machine_.refresh_ms, 0, expected, right);
      ms += machine_.refresh_ms;
      committed += right;
      tree_.clear();
    }
    return 1e3 * static_cast<double>(committed) / ms;
  }

  double predicted() const { return predicted_; }  // tokens that refreshes were expected to confirm

 private:
  bool goes_on(const RefreshPolicy& rule, int64_t most_depth) {
    if (machine_.drafts && !tree_.offered() && tree_.tip() && tree_.tip()->depth < most_depth) tree_.offer(guess());
    const double growth = tree_.partial_steps() == 0 ? 1 : tree_.predicted_growth(most_depth, forward_.value(1));
    if (growth == 0) return false;
    if (interval_ > 0) return !tree_.finished(most_depth);
    return rule.pays({.expected = tree_.expected(most_depth), .more = growth});
  }

  // A chain of five: each with some chance what the target's part will say, which compute() then decides.
  Tree guess() {
    Tree tree;
    tree.reset(tree_.tip()->token);
    tree.scores = {0};
    for (int32_t level = 0; level < 5; ++level) {
      tree.add(next_token_++, level);
      tree.scores.push_back(tree.scores.back() - 0.5f);
    }
    return tree;
  }

  void compute(int64_t first) {
    std::vector<int32_t> samples, tokens;
    std::vector<float> log_probs;
    const Tree& tree = tree_.tree();
    for (int64_t node = first; node < tree.size(); ++node) {
      const size_t at = static_cast<size_t>(node);
      std::vector<std::pair<double, int32_t>> scores;
      for (int i = 0; i < 24; ++i) scores.push_back({2 * gumbel_(random_), next_token_++});
      std::sort(scores.rbegin(), scores.rend());
      // What the draft guessed here, if it did, is the first choice about half the time.
      for (size_t child = at + 1; child < tree.tokens.size(); ++child) {
        if (static_cast<size_t>(tree.parents[child]) != at) continue;
        const double luck = std::uniform_real_distribution<double>()(random_);
        scores[luck < 0.6 ? 0 : luck < 0.75 ? 1 : 20].second = tree.tokens[child];
      }
      const double apart = machine_.noise > 0 ? machine_.noise : noise_ * (2 + 0.1 * tree.depths[at]);
      std::normal_distribution<double> noise(0, apart);
      double best = -1e9;
      int32_t right = -1;
      for (const auto& [score, token] : scores) {
        const double full = score + noise(random_);
        if (full > best) best = full, right = token;
      }
      truths_[tree.tokens[at]] = right;  // no token stands twice
      samples.push_back(scores[0].second);
      for (size_t i = 0; i < kRankedTokens; ++i) {
        tokens.push_back(scores[i].second);
        log_probs.push_back(static_cast<float>(scores[i].first));
      }
    }
    tree_.rank(first, {.samples = samples, .tokens = tokens, .log_probs = log_probs});
  }

  int64_t judge(int64_t most_depth) {
    tree_.fill(most_depth);
    const Tree& tree = tree_.tree();
    std::vector<int32_t> samples;
    for (const int32_t token : tree.tokens) {
      const auto found = truths_.find(token);
      samples.push_back(found == truths_.end() ? -1 : found->second);
    }
    // Behind what no partial step has computed a draft's guess is right as often as ever.
    for (size_t i = 1; i < tree.tokens.size(); ++i) {
      int32_t& truth = samples[static_cast<size_t>(tree.parents[i])];
      if (truth == -1) truth = std::uniform_real_distribution<double>()(random_) < 0.5 ? tree.tokens[i] : -2;
    }
    Acceptance acceptance;
    accept(tree, samples, &acceptance);
    tree_.learn(samples, acceptance);
    return static_cast<int64_t>(acceptance.nodes.size());
  }

  static constexpr int64_t kPassage = 60;  // tokens that are as hard
  static constexpr std::array<double, 6> kNoise = {0.03, 0.3, 0.1, 0.1, 0.2, 0.05};

  const Machine machine_;
  const int64_t interval_;
  std::mt19937 random_;
  std::extreme_value_distribution<double> gumbel_{0.0, 1.0};
  PendingTree tree_;
  RunningMean forward_;                // tokens of the first choices a step
  std::map<int32_t, int32_t> truths_;  // after a token
  double noise_ = 0, predicted_ = 0;
  int32_t next_token_ = 1;
};

// Blocks with a draft and without, and copies: with the noise of an int8 copy (1% overturned) and less.
constexpr Machine kMachines[] = {{6.4, 73, false}, {7.9, 150, true}, {5.6, 147, false, 0.035}, {7.4, 147, true, 0.02}};

TEST(PendingRule, IsNearlyAsGoodAsTheBestInterval) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "dice enough for a comparison take minutes, and the pieces have tests of their own";
  }
  for (const Machine& machine : kMachines) {
    const std::string name = str("a refresh of ", machine.refresh_ms, " ms", machine.drafts ? ", with a draft" : "",
                                 ", noise ", machine.noise);
    const auto tokens_per_s = [&](int64_t interval, double* predicted) {
      double sum = 0;
      for (uint32_t seed = 1; seed <= kTexts; ++seed) {
        DicedText text(machine, interval, seed);
        sum += text.run(kTokens) / kTexts;
        *predicted += text.predicted() / kTexts;
      }
      return sum;
    };
    double best = 0, predicted = 0;
    for (const int64_t interval : {8, 20, 40, 128}) best = std::max(best, tokens_per_s(interval, &predicted));
    predicted = 0;
    EXPECT_GT(tokens_per_s(0, &predicted), 0.95 * best) << name;
    EXPECT_NEAR(predicted / kTokens, 1.0, 0.1) << name;
  }
}

}  // namespace
}  // namespace headrace
