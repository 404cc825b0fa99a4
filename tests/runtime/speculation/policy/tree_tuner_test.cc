// `--tree auto` against every fixed size, on machines and texts that are made up: costs as a GPU with resident KV, a
// GPU that streams, and a CPU have them.
#include "runtime/speculation/policy/tree_tuner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "tests/support/sanitized.h"

namespace headrace {
namespace {

struct TreeMachine {
  const char* name;
  std::function<double(int64_t nodes)> verify_ms;
  std::function<double(int64_t levels)> draft_ms;
  TreeLimits start;
};

const TreeMachine kTreeMachines[] = {
    {"resident",
     [](int64_t n) { return (n <= 64 ? 8.0 : 12.0) + 0.05 * static_cast<double>(n); },
     [](int64_t l) { return 0.5 + 0.35 * static_cast<double>(l); },
     {.nodes = 32, .levels = 5}},
    {"streamed",
     [](int64_t n) { return 147.0 + (n <= 64 ? 0.0 : 3.0); },
     [](int64_t l) { return 0.5 + 0.35 * static_cast<double>(l); },
     {.nodes = 64, .levels = 6}},
    {"cpu",
     [](int64_t n) { return 16.0 + 2.5 * static_cast<double>(n); },
     [](int64_t l) { return 1.2 + 1.3 * static_cast<double>(l); },
     {.nodes = 4, .levels = 3}},
};

// A text: at each depth the right token is the draft's k-th guess with a probability that falls with k, or none. Its
// node's rank in the whole tree grows with the guesses' places on the way. The scores are what the draft believes: a
// little too much of itself.
class Text {
 public:
  Text(double likely, unsigned seed) : likely_(likely), random_(seed) {
    constexpr int kDraws = 2000;
    std::vector<double> hits(kMaxTreeNodes, 0.5);
    for (int i = 0; i < kDraws; ++i) {
      for (const int64_t rank : right_ranks()) {
        if (rank < kMaxTreeNodes) ++hits[static_cast<size_t>(rank)];
      }
    }
    hits[0] = kDraws;  // the root
    double bound = 1;  // ranks are in order of score
    for (const double count : hits) {
      bound = std::min(bound, count / kDraws);
      scores_.push_back(static_cast<float>(0.95 * std::log(bound)));
    }
  }

  // Sets the nodes' scores and the accepted path of a step within `limits`. Returns tokens that came out.
  int64_t step(const TreeLimits& limits, Tree* tree, Acceptance* acceptance) {
    const std::vector<int64_t> ranks = right_ranks();
    tree->reset(0);
    acceptance->nodes.assign(1, 0);
    std::vector<int32_t> last(static_cast<size_t>(limits.levels) + 1);  // by depth: the root is at 0
    size_t next = 0, deepest = 0;
    for (int64_t node = 1; node < limits.nodes; ++node) {  // in order of score: node i has rank i
      const bool right = next < ranks.size() && static_cast<int64_t>(next) < limits.levels && node >= ranks[next];
      const size_t depth = right ? next + 1 : static_cast<size_t>(node) % std::min(deepest + 1, last.size() - 1) + 1;
      const int32_t added = tree->add(static_cast<int32_t>(node), right ? acceptance->nodes.back() : last[depth - 1]);
      last[depth] = added;
      deepest = std::max(deepest, depth);
      if (!right) continue;
      acceptance->nodes.push_back(added);
      ++next;
    }
    tree->scores.assign(scores_.begin(), scores_.begin() + tree->size());
    return static_cast<int64_t>(acceptance->nodes.size());
  }

 private:
  std::vector<int64_t> right_ranks() {  // in a tree without limits, by depth
    std::uniform_real_distribution<double> uniform;
    std::vector<int64_t> ranks;
    double rank = 0;
    for (int depth = 0; depth < 12; ++depth) {
      if (uniform(random_) > likely_ + 0.25) break;
      const double place = uniform(random_) < likely_ / (likely_ + 0.25) ? 1 : 1 + std::floor(uniform(random_) * 8);
      rank = rank * (depth == 0 ? 1 : 1.35) + place * (1 + depth * 0.4);
      ranks.push_back(static_cast<int64_t>(rank));
    }
    return ranks;
  }

  const double likely_;
  std::mt19937 random_;
  std::vector<float> scores_;
};

constexpr TreeLimits kLargest = {.nodes = 128, .levels = 8};
constexpr int kSteps = 200;

double rate_of(int64_t tokens, double ms) { return static_cast<double>(tokens) / ms; }

double fixed_rate(const TreeMachine& machine, double likely, const TreeLimits& limits) {
  Text text(likely, 1);
  Tree tree;
  Acceptance acceptance;
  int64_t tokens = 0;
  for (int i = 0; i < 4000; ++i) tokens += text.step(limits, &tree, &acceptance);
  return rate_of(tokens, 4000 * (machine.draft_ms(limits.levels) + machine.verify_ms(limits.nodes)));
}

// With noise in the times, and first steps of a kind that take ten times as long.
double tuned_rate(const TreeMachine& machine, double likely, unsigned seed) {
  Text text(likely, seed);
  std::mt19937 random(seed + 100);
  std::lognormal_distribution<double> noise(0.0, 0.05);
  TreeTuner tuner({.largest = kLargest, .start = machine.start});
  Tree tree;
  Acceptance acceptance;
  std::vector<bool> seen(kLargest.nodes + 1);
  int64_t tokens = 0;
  double ms = 0;
  for (int i = 0; i < kSteps; ++i) {
    const TreeLimits limits = tuner.next();
    EXPECT_GE(limits.nodes, 2);
    EXPECT_LE(limits.nodes, kLargest.nodes);
    EXPECT_GE(limits.levels, 1);
    EXPECT_LE(limits.levels, kLargest.levels);
    tokens += text.step(limits, &tree, &acceptance);
    const double draft = machine.draft_ms(limits.levels) * noise(random);
    const double verify = machine.verify_ms(limits.nodes) * noise(random);
    ms += draft + verify;  // what comes once is not counted against it
    const bool first = !seen[static_cast<size_t>(limits.nodes)];
    seen[static_cast<size_t>(limits.nodes)] = true;
    tuner.record(limits, tree, acceptance, draft, first ? 10 * verify : verify);
  }
  return rate_of(tokens, ms);
}

TEST(TreeTuner, ComesCloseToTheBestFixedSize) {
  for (const TreeMachine& machine : kTreeMachines) {
    for (const double likely : {0.2, 0.45, 0.7}) {
      if (testing::kSanitized && (likely != 0.45 || &machine != kTreeMachines)) continue;  // steps enough for its code
      double best = 0;
      TreeLimits best_limits;
      for (const int64_t nodes : {8, 16, 32, 64, 128}) {
        for (const int64_t levels : {3, 5, 8}) {
          const double rate = fixed_rate(machine, likely, {nodes, levels});
          if (rate > best) best = rate, best_limits = {nodes, levels};
        }
      }
      double tuned = 0;
      for (unsigned seed = 1; seed <= 20; ++seed) tuned += tuned_rate(machine, likely, seed) / 20;
      EXPECT_GT(tuned, 0.95 * best) << machine.name << ", likely " << likely << ": " << tuned * 1e3 << " of "
                                    << best * 1e3 << " tokens/s, best " << best_limits.nodes << " nodes, "
                                    << best_limits.levels << " levels";
    }
  }
}

TEST(TreeTuner, StaysWithinASmallShape) {
  TreeTuner tuner({.largest = {.nodes = 3, .levels = 2}, .start = {.nodes = 64, .levels = 6}});
  Tree tree;
  Acceptance acceptance;
  Text text(0.5, 3);
  for (int i = 0; i < 60; ++i) {
    const TreeLimits limits = tuner.next();
    ASSERT_LE(limits.nodes, 3);
    ASSERT_LE(limits.levels, 2);
    text.step(limits, &tree, &acceptance);
    tuner.record(limits, tree, acceptance, 1, 10);
  }
}

}  // namespace
}  // namespace headrace
