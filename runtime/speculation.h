// What drafting and partial verification gave in a run. tau counts the accepted draft tokens of a step, as SpecPV does;
// EAGLE's papers add the target's own token, which is tokens_per_step here. A partial step's tokens count when it
// accepts them, whatever becomes of them. A plain value.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/accept.h"
#include "runtime/verification.h"

namespace headrace {

struct Speculation {
  // Steps of one mode.
  struct Kind {
    int64_t steps = 0, accepted = 0;     // accepted: draft tokens
    double draft_ms = 0, verify_ms = 0;  // sums over the steps: proposing a tree; the target's pass and its commit
    double tau() const { return steps > 0 ? static_cast<double>(accepted) / static_cast<double>(steps) : 0; }
  };

  std::string type;  // "draft-eagle3"; empty: no draft
  int64_t steps = 0;
  int64_t proposed = 0, accepted = 0;      // draft tokens
  std::vector<int64_t> accepted_by_depth;  // [d]: steps whose draft token at depth d + 1 was accepted
  double draft_ms = 0, verify_ms = 0;      // as Kind has them
  VerifyMode verify = VerifyMode::kFull;
  std::array<Kind, 3> kinds{};  // by StepMode
  Judgement judgement{};

  bool happened() const { return !type.empty() || verify != VerifyMode::kFull; }
  const Kind& of(StepMode mode) const { return kinds[static_cast<size_t>(mode)]; }
  double tau() const { return steps > 0 ? static_cast<double>(accepted) / static_cast<double>(steps) : 0; }
  double tokens_per_step() const { return steps > 0 ? tau() + 1 : 0; }

  // A step's: `proposed_here` draft tokens, of which the `right` first levels were accepted.
  void record(StepMode mode, int64_t proposed_here, size_t right, double drafted_ms, double verified_ms) {
    Kind& kind = kinds[static_cast<size_t>(mode)];
    ++steps;
    ++kind.steps;
    proposed += proposed_here;
    accepted += static_cast<int64_t>(right);
    kind.accepted += static_cast<int64_t>(right);
    draft_ms += drafted_ms;
    kind.draft_ms += drafted_ms;
    verify_ms += verified_ms;
    kind.verify_ms += verified_ms;
    if (accepted_by_depth.size() < right) accepted_by_depth.resize(right);
    for (size_t depth = 0; depth < right; ++depth) ++accepted_by_depth[depth];
  }
};

}  // namespace headrace
