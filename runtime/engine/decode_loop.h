// The loop of docs/design.md, section 3: propose a tree, verify it in one target pass, accept the longest right path,
// commit its rows. With partial verification most passes see the partial KV, and what they accept is pending until a
// refresh has seen the full KV (docs/design.md, section 8; SpecPV section 3.3). Internal to the engine. Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/progress.h"
#include "runtime/engine/drafting.h"
#include "runtime/engine/output.h"
#include "runtime/engine/run_setup.h"
#include "runtime/session/executor.h"
#include "runtime/speculation/policy/chain_forecast.h"
#include "runtime/speculation/policy/overturn_limit.h"
#include "runtime/speculation/policy/refresh_policy.h"

namespace headrace {

// A run whose prompt was prefilled. All references must outlive the loop.
struct Run {
  const PreparedRun& prepared;
  const GenerateOptions& options;
  const std::string& model;  // the model's path, for errors
  Sequence& sequence;
  Executor& executor;
  Drafting& drafting;
  Output& output;
  Progress* progress;        // may be null
  double refresh_steps = 0;  // as RefreshPolicy
};

class DecodeLoop {
 public:
  explicit DecodeLoop(const Run& run);

  // From the token after the prompt to the end of the run.
  void run(int32_t first);
  // Takes GenerateOptions::forced in the place of samples. Each token is a step over the full KV that accepts only the
  // root of its tree.
  void follow(std::vector<ForcedToken>* out);

 private:
  StepMode next_mode() const;
  bool chain_pays() const;
  bool verify_step(StepMode mode);  // this and partial_step(), tree_step(): false if the run has ended
  bool partial_step();
  bool tree_step();
  void propose_after_tip(int64_t most_depth);
  bool grow_on(int64_t most_depth);
  bool verify_tree(int64_t most_depth);
  bool step_on_device(StepMode mode, int64_t position);
  const Tree& behind_pending();
  VerifyOutcome verify_pending(std::span<const int32_t> samples);
  void commit(StepMode mode, const Tree& tree, const Outcome& outcome);
  void cut_at_the_end();
  void end_thinking(const Tree& tree, size_t first_node);
  int64_t room() const;
  bool emit(const Tree& tree, size_t first_node);
  int32_t settled(int32_t sample) const;

  const Run run_;
  const SessionLayout& layout_;
  const Sequence& sequence_;
  Executor& executor_;
  Drafting& drafting_;
  Output& output_;
  const int64_t most_pending_;           // tokens
  const int64_t interval_;               // kAutoInterval: chosen from measured step costs
  std::optional<OverturnLimit> limit_;   // --max-overturned
  bool final_;                           // partial acceptance is final: an approximate run, within its limit
  std::optional<PendingTree> growing_;   // the pending tokens if they are a tree
  ChainForecast chain_;                  // predicts the yield of a chain
  std::optional<RefreshPolicy> policy_;  // none: a fixed interval

  const int64_t prompt_tokens_;
  Tree tree_, combined_;
  Acceptance acceptance_;
  int32_t root_ = -1;             // the last sampled token; it has no row yet
  std::vector<int32_t> pending_;  // tokens before the root whose rows are not in the full KV
  std::vector<int32_t> wrong_;    // ages of those that the last refresh rejected
  int64_t accepted_ = 0;          // tokens, from the last refresh on, its own included
  bool at_the_end_ = false;       // a refresh comes next: the provisional root would end the run, or thinking ends
};

}  // namespace headrace
