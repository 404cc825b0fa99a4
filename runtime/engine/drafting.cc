#include "runtime/engine/drafting.h"

#include <algorithm>
#include <numeric>

#include "kernels/product/op.h"

namespace headrace {
namespace {

constexpr int64_t kStepsReserved = int64_t{1} << 20;
constexpr int64_t kStepsAToken = 8;  // of lossless runs: a tree of pending tokens may be wrong as a whole

// Limits of a run's first trees. If a pass of 64 rows costs little more than a pass of one row, they are larger.
TreeLimits first_limits(bool rows_cost, bool streams) {
  if (rows_cost) return {.nodes = 4, .levels = 3};
  return streams ? TreeLimits{.nodes = 64, .levels = 6} : TreeLimits{.nodes = 32, .levels = 5};
}

int64_t levels_of(const Tree& tree) { return *std::max_element(tree.depths.begin(), tree.depths.end()); }

// Limits of all trees of an approximate run with `--tree auto`. Its text depends on the trees, so neither measurements
// nor the free memory may determine them. A GPU's pass costs the same up to 64 rows.
TreeLimits approximate_limits(Backend backend) {
  if (backend == Backend::kCpu) return first_limits(true, false);
  return {.nodes = kProductRowPadding};
}

}  // namespace

Drafting::Drafting(const DraftModel* model, Draft* draft, Stream& compute, const DraftingOptions& options)
    : model_(model),
      draft_(draft),
      limits_(options.limits.value_or(TreeLimits{})),
      step_costs_(options.step_costs),
      rows_cost_(options.nodes_cost || compute.backend() == Backend::kCpu),
      compute_(compute) {
  const Backend backend = compute.backend();
  const int64_t steps = (options.verify == VerifyMode::kLossless ? kStepsAToken : 1) * options.most_steps;
  step_ms_.reserve(static_cast<size_t>(std::min(steps, kStepsReserved)));
  depths_.reserve(kMaxPassNodes);
  speculation_.by_age.reserve(kMaxPending / Speculation::kAgeTokens + 1);
  speculation_.offered_by_depth.reserve(kMaxTreeNodes);
  speculation_.accepted_by_depth.reserve(kMaxTreeNodes);
  speculation_.verify = options.verify;
  if (options.partial.on()) speculation_.partial_kv = options.partial.name();
  speculation_.substitute = options.substitute;
  if (model == nullptr) return;
  speculation_.type = model->name();
  stopwatch_ = make_stopwatch(compute);
  if (options.limits) return;
  const bool trees_decide_text = options.verify == VerifyMode::kApproximate;
  if (model->finds_trees() && !trees_decide_text) {
    trimmers_[0].emplace();
    if (!options.grows) trimmers_[1].emplace();
  }
  if (!model->tunes_trees()) return;
  if (trees_decide_text) {
    limits_ = approximate_limits(backend);
    return;
  }
  largest_ = model->tree();
  largest_.nodes = std::min(largest_.nodes, options.most_nodes);
  tuners_[0].emplace(TunerOptions{.largest = largest_, .start = first_limits(rows_cost_, options.streams)});
  tuners_[1].emplace(TunerOptions{.largest = largest_, .start = first_limits(rows_cost_, false)});
}

int64_t Drafting::deepest() const { return model_ != nullptr ? model_->tree().levels : 0; }

void Drafting::begin(StepMode mode, int64_t pending, int64_t age) {
  start_ = HostClock::now();
  mode_ = mode;
  pending_ = pending;
  age_ = age;
  proposed_ = levels_ = 0;
  draft_ms_ = 0;
  timed_ = false;
  trimmed_by_ = nullptr;
}

// Behind pending tokens a tree costs a GPU's pass next to nothing without recurrent layers, so it has the draft's full
// size, and the tuner does not learn from it.
TreeLimits Drafting::next_limits() {
  if (tuner()) limits_ = pending_ > 0 && !rows_cost_ ? largest_ : tuner()->next();
  TreeLimits limits = limits_;
  limits.levels = std::min(limits.levels, kTailWindow - 1 - pending_);
  return limits;
}

// The trimmer does not cut such a tree either.
TreeTrimmer* Drafting::trimmer() {
  std::optional<TreeTrimmer>& here = trimmers_[kv()];
  return here && pending_ == 0 ? &*here : nullptr;
}

void Drafting::propose(int32_t root, int64_t position, Tree* tree) {
  if (draft_ == nullptr) return;
  draft_->propose(root, position, next_limits(), tree);
  trimmed_by_ = trimmer();
  if (trimmed_by_ != nullptr) trimmed_by_->trim(tree);
  proposed_ = tree->size() - 1;
  levels_ = levels_of(*tree);
  draft_ms_ = ms_since(start_);
}

ProposedTree Drafting::propose_into(int32_t root, int64_t position, const TreeInputs& to) {
  if (draft_ == nullptr) return {};
  stopwatch_->start(compute_);
  const ProposedTree proposed = draft_->propose_into(root, position, next_limits(), to);
  timed_ = proposed.nodes > 0;
  if (timed_) proposed_ = proposed.nodes - 1;
  if (timed_) stopwatch_->stop(compute_);
  return proposed;
}

void Drafting::turn_to_refresh(int64_t pending) {
  mode_ = StepMode::kRefresh;
  pending_ = draft_ != nullptr ? pending : 0;
}

std::span<const int32_t> Drafting::depths_to(int64_t last) {
  depths_.resize(static_cast<size_t>(last));
  std::iota(depths_.begin(), depths_.end(), 1);
  return depths_;
}

void Drafting::grown(int64_t nodes, const Tree& drafted, const Acceptance& followed) {
  const bool reported = draft_ != nullptr && !followed.nodes.empty();
  if (reported) draft_->observe(drafted, followed);
  const double ms = ms_since(start_);
  step_ms_.push_back(static_cast<float>(ms));
  const int64_t right = reported ? static_cast<int64_t>(followed.nodes.size()) - 1 : 0;
  speculation_.record(StepMode::kPartial, {.nodes = nodes,
                                           .proposed = proposed_,
                                           .levels = levels_,
                                           .age = age_,
                                           .accepted_depths = depths_to(right),
                                           .draft_ms = draft_ms_,
                                           .verify_ms = ms - draft_ms_});
  // A proposal counts in the step that made it. The step's whole time counts as its verification, although the step
  // also computes other guesses: without the proposal these would have filled its rows, in the same time. A proposal
  // that was cut to the step's width says nothing about the nodes beyond the cut.
  if (reported && tuner() && draft_ms_ > 0 && drafted.size() > 1) {
    TreeLimits seen = limits_;
    if (drafted.size() <= proposed_) seen.nodes = std::min(seen.nodes, drafted.size());
    record_tree(seen, drafted, followed, ms - draft_ms_);
  }
}

// The time of a step that the run's options give, or else the measured one.
double Drafting::given_ms(double measured) const {
  const double given = mode_ == StepMode::kPartial ? step_costs_.partial_ms : step_costs_.refresh_ms;
  return given > 0 ? given : measured;
}

void Drafting::record_tree(const TreeLimits& limits, const Tree& tree, const Acceptance& acceptance, double verify_ms) {
  tuner()->record(limits, tree, acceptance, draft_ms_, given_ms(verify_ms));
}

void Drafting::observe(const Tree& tree, const Acceptance& acceptance, int64_t position, const Outcome& outcome) {
  if (draft_ != nullptr) {
    if (pending_ > 0) draft_->rewind(position);
    draft_->observe(tree, acceptance);
  }
  const double ms = ms_since(start_);
  step_ms_.push_back(static_cast<float>(ms));
  if (timed_) {  // the host has not seen the tree before
    draft_ms_ = std::min(ms, stopwatch_->ms());
    levels_ = levels_of(tree);
  }
  const int64_t behind = pending_ + 1;  // nodes before the draft's first
  const int64_t right = std::max<int64_t>(0, static_cast<int64_t>(acceptance.nodes.size()) - behind);
  speculation_.record(mode_, {.nodes = tree.size(),
                              .proposed = proposed_,
                              .committed = outcome.committed,
                              .levels = levels_,
                              .age = age_,
                              .accepted_depths = outcome.accepted_depths.value_or(depths_to(right)),
                              .draft_ms = draft_ms_,
                              .verify_ms = ms - draft_ms_});
  speculation_.judge(outcome.verify_outcome, outcome.wrong_ages);
  if (trimmed_by_ != nullptr) {
    const std::vector<int32_t>& path = acceptance.nodes;
    const int32_t next = path.size() > 1 ? tree.tokens[static_cast<size_t>(path[1])] : acceptance.next;
    trimmed_by_->record(tree, next, given_ms(ms));
  }
  if (tuner() && pending_ == 0 && tree.size() > 1) record_tree(limits_, tree, acceptance, ms - draft_ms_);
}

}  // namespace headrace
