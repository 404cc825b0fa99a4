// What drafting and partial verification gave in a run. A plain value. Each word means one thing, with a draft and
// without, whether pending tokens are a chain or a tree, in the text report, in JSON and in the benches' rows:
//   step       a target pass
//   node       a token that a step computed; a refresh judges all of its nodes
//   proposed   tokens that the draft proposed
//   accepted   of those, the ones that a step found right; of a partial step provisionally. Each counts once, in the
//              step that did first, whatever becomes of it
//   tau        accepted tokens a step, as SpecPV counts them (EAGLE's papers add the target's own)
//   confirmed  tokens that a step made certain, the target's own among them: of a full step and of a refresh all that
//              came out of it, of a partial one none but where partial acceptance is final
//   tokens a step          confirmed tokens over all steps, whatever their mode
//   judged, overturned, …  Judgement
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/accept.h"
#include "runtime/verification.h"

namespace headrace {

struct Speculation {
  // One step.
  struct Step {
    int64_t nodes = 1, proposed = 0, accepted = 0, confirmed = 0;
    double draft_ms = 0, verify_ms = 0;  // proposing a tree; the target's pass and its commit
  };
  // Steps of one mode: sums.
  struct Kind {
    int64_t steps = 0, nodes = 0, accepted = 0, confirmed = 0;
    double draft_ms = 0, verify_ms = 0;
    double a_step(int64_t sum) const { return steps > 0 ? static_cast<double>(sum) / static_cast<double>(steps) : 0; }
    double tau() const { return a_step(accepted); }
  };

  std::string type;  // "draft-eagle3"; empty: no draft
  int64_t steps = 0;
  int64_t proposed = 0, accepted = 0, confirmed = 0;
  std::vector<int64_t> accepted_by_depth;  // [d]: steps whose draft token at depth d + 1 was accepted
  double draft_ms = 0, verify_ms = 0;
  VerifyMode verify = VerifyMode::kFull;
  std::array<Kind, 3> kinds{};  // by StepMode
  Judgement judgement{};

  bool happened() const { return !type.empty() || verify != VerifyMode::kFull; }
  const Kind& of(StepMode mode) const { return kinds[static_cast<size_t>(mode)]; }
  double a_step(int64_t sum) const { return steps > 0 ? static_cast<double>(sum) / static_cast<double>(steps) : 0; }
  double tau() const { return a_step(accepted); }
  double tokens_per_step() const { return a_step(confirmed); }

  void record(StepMode mode, const Step& step) {
    Kind& kind = kinds[static_cast<size_t>(mode)];
    ++steps;
    ++kind.steps;
    kind.nodes += step.nodes;
    proposed += step.proposed;
    accepted += step.accepted;
    kind.accepted += step.accepted;
    confirmed += step.confirmed;
    kind.confirmed += step.confirmed;
    draft_ms += step.draft_ms;
    kind.draft_ms += step.draft_ms;
    verify_ms += step.verify_ms;
    kind.verify_ms += step.verify_ms;
    const size_t right = static_cast<size_t>(step.accepted);
    if (accepted_by_depth.size() < right) accepted_by_depth.resize(right);
    for (size_t depth = 0; depth < right; ++depth) ++accepted_by_depth[depth];
  }
};

}  // namespace headrace
