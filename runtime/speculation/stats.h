// Statistics of drafting and partial verification in a run. A plain value. Each term has one meaning, with a draft and
// without, for chains and trees of pending tokens, in the text report, in JSON and in the benches' rows:
//   step       a target pass
//   node       a token that a step computed; a refresh judges all of its nodes
//   proposed   tokens that the draft proposed
//   accepted   proposed tokens that a step found correct; in a partial step provisionally. Each counts once, in the
//              first such step, even if a refresh rejects it. At most one token per depth of a proposal is accepted
//   depth      of a proposed token: its distance from the token that the draft was asked to continue (the root of the
//              proposal), so the first has depth 1. It is neither the depth in a tree of pending tokens nor the number
//              of tokens that a step accepted
//   tau        accepted tokens a step, as SpecPV counts them (EAGLE's papers add the target's own)
//   committed  tokens that a step made final, the target's own included: all tokens of a full step and of a refresh;
//              those of a partial step only where partial acceptance is final
//   tokens a step          committed tokens over all steps, whatever their mode
//   judged, rejected, …  VerifyOutcome
//   age        of a pending token: the tokens from the last refresh to it; of a step: those to the token that its
//              proposal continues
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/speculation/accept.h"
#include "runtime/speculation/verify_options.h"

namespace headrace {

struct Speculation {
  // One step.
  struct Step {
    int64_t nodes = 1, proposed = 0, committed = 0;
    int64_t levels = 0;  // the greatest proposed depth
    int64_t age = 0;
    std::span<const int32_t> accepted_depths{};  // the depth of each accepted token; valid during record()
    double draft_ms = 0, verify_ms = 0;          // to propose a tree; the target's pass and its commit
  };
  // Sums over the steps of one mode.
  struct Kind {
    int64_t steps = 0, nodes = 0, accepted = 0, committed = 0;
    double draft_ms = 0, verify_ms = 0;
    double a_step(int64_t sum) const { return steps > 0 ? static_cast<double>(sum) / static_cast<double>(steps) : 0; }
    double tau() const { return a_step(accepted); }
    void add(const Kind& more) {
      steps += more.steps;
      nodes += more.nodes;
      accepted += more.accepted;
      committed += more.committed;
      draft_ms += more.draft_ms;
      verify_ms += more.verify_ms;
    }
  };

  // Sums over kAgeTokens ages: steps with a proposal and what they accepted; pending tokens that refreshes judged.
  static constexpr int64_t kAgeTokens = 8;
  struct Age {
    int64_t steps = 0, accepted = 0, judged = 0, rejected = 0;
    double tau() const { return steps > 0 ? static_cast<double>(accepted) / static_cast<double>(steps) : 0; }
  };

  std::string type;  // "draft-eagle3"; empty: no draft
  int64_t steps = 0;
  int64_t proposed = 0, accepted = 0, committed = 0;
  // [d - 1], for depth d: proposals with a token at that depth, and proposals with an accepted one. The quotient is the
  // chance that a proposal is correct down to depth d. The accepted ones sum to `accepted`.
  std::vector<int64_t> offered_by_depth, accepted_by_depth;
  double draft_ms = 0, verify_ms = 0;
  VerifyMode verify = VerifyMode::kFull;
  std::string partial_kv{};     // what partial steps read: "blocks", "int4", "int8", "exact"; empty: there are none
  std::string substitute{};     // of layers in host memory, for partial steps: "Q4_K"; empty: they have none
  std::array<Kind, 3> kinds{};  // by StepMode
  VerifyOutcome verify_outcome{};
  std::vector<Age> by_age{};  // of runs with partial steps

  bool happened() const { return !type.empty() || verify != VerifyMode::kFull; }
  const Kind& of(StepMode mode) const { return kinds[static_cast<size_t>(mode)]; }
  double a_step(int64_t sum) const { return steps > 0 ? static_cast<double>(sum) / static_cast<double>(steps) : 0; }
  double tau() const { return a_step(accepted); }
  double tokens_per_step() const { return a_step(committed); }

  void record(StepMode mode, const Step& step) {
    const int64_t right = static_cast<int64_t>(step.accepted_depths.size());
    kinds[static_cast<size_t>(mode)].add({.steps = 1,
                                          .nodes = step.nodes,
                                          .accepted = right,
                                          .committed = step.committed,
                                          .draft_ms = step.draft_ms,
                                          .verify_ms = step.verify_ms});
    ++steps;
    proposed += step.proposed;
    accepted += right;
    committed += step.committed;
    draft_ms += step.draft_ms;
    verify_ms += step.verify_ms;
    if (verify != VerifyMode::kFull && step.proposed > 0) {
      ++of_age(step.age).steps;
      of_age(step.age).accepted += right;
    }
    for (int64_t depth = 1; depth <= step.levels; ++depth) ++at(depth, &offered_by_depth);
    for (const int32_t depth : step.accepted_depths) ++at(depth, &accepted_by_depth);
  }

  // A refresh judged the pending tokens of ages [0, outcome.judged); `wrong`: the ages of those that it rejected.
  void judge(const VerifyOutcome& outcome, std::span<const int32_t> wrong) {
    verify_outcome.add(outcome);
    for (int64_t age = 0; age < outcome.judged; ++age) ++of_age(age).judged;
    for (const int32_t age : wrong) ++of_age(age).rejected;
  }

  // Adds a run with the same `type` and `verify`.
  void add(const Speculation& more) {
    type = more.type;
    verify = more.verify;
    partial_kv = more.partial_kv;
    substitute = more.substitute;
    for (size_t i = 0; i < kinds.size(); ++i) kinds[i].add(more.kinds[i]);
    steps += more.steps;
    proposed += more.proposed;
    accepted += more.accepted;
    committed += more.committed;
    draft_ms += more.draft_ms;
    verify_ms += more.verify_ms;
    add_depths(more.offered_by_depth, &offered_by_depth);
    add_depths(more.accepted_by_depth, &accepted_by_depth);
    verify_outcome.add(more.verify_outcome);
    for (size_t i = 0; i < more.by_age.size(); ++i) {
      Age& sum = of_age(static_cast<int64_t>(i) * kAgeTokens);
      sum.steps += more.by_age[i].steps;
      sum.accepted += more.by_age[i].accepted;
      sum.judged += more.by_age[i].judged;
      sum.rejected += more.by_age[i].rejected;
    }
  }

 private:
  Age& of_age(int64_t age) {
    const auto group = static_cast<size_t>(age / kAgeTokens);
    by_age.resize(std::max(by_age.size(), group + 1));
    return by_age[group];
  }
  static int64_t& at(int64_t depth, std::vector<int64_t>* counts) {
    counts->resize(std::max(counts->size(), static_cast<size_t>(depth)));
    return (*counts)[static_cast<size_t>(depth) - 1];
  }
  static void add_depths(const std::vector<int64_t>& more, std::vector<int64_t>* counts) {
    for (size_t i = 0; i < more.size(); ++i) at(static_cast<int64_t>(i) + 1, counts) += more[i];
  }
};

}  // namespace headrace
