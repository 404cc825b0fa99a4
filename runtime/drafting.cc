#include "runtime/drafting.h"

#include <algorithm>

namespace headrace {
namespace {

constexpr int64_t kStepsReserved = int64_t{1} << 20;

// Of a run's first trees: where 64 rows cost a pass little more than one, the first look is at larger ones.
TreeLimits first_limits(Backend backend, bool streams) {
  if (backend == Backend::kCpu) return {.nodes = 4, .levels = 3};
  return streams ? TreeLimits{.nodes = 64, .levels = 6} : TreeLimits{.nodes = 32, .levels = 5};
}

}  // namespace

Drafting::Drafting(DraftModel* model, const DraftRun& run)
    : model_(model),
      draft_(model != nullptr ? model->start(run) : nullptr),
      fixed_(run.tree_limits.has_value()),
      limits_(run.tree_limits.value_or(TreeLimits{})) {
  if (model != nullptr) speculation_.type = spec_type_name(model->type());
}

void Drafting::planned(Backend backend, bool streams, int64_t most_steps) {
  step_ms_.reserve(static_cast<size_t>(std::min(most_steps, kStepsReserved)));
  if (model_ == nullptr || !model_->tunes_trees() || fixed_) return;
  tuner_.emplace(TunerOptions{.largest = model_->tree(), .start = first_limits(backend, streams)});
}

void Drafting::propose(int32_t root, int64_t position, Tree* tree) {
  start_ = Clock::now();
  tree->reset(root);
  if (draft_ == nullptr) return;
  if (tuner_) limits_ = tuner_->next();
  draft_->propose(root, position, limits_, tree);
  draft_ms_ = std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
}

void Drafting::observe(const Tree& tree, const Acceptance& acceptance) {
  if (draft_ != nullptr) draft_->observe(tree, acceptance);
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
  step_ms_.push_back(static_cast<float>(ms));
  speculation_.record(tree, acceptance);
  speculation_.draft_ms += draft_ms_;
  speculation_.verify_ms += ms - draft_ms_;
  if (tuner_) tuner_->record(limits_, tree, acceptance, draft_ms_, ms - draft_ms_);
}

}  // namespace headrace
