#include "runtime/session/recur.h"

#include <algorithm>

namespace headrace {

PassRecurrence::PassRecurrence(const SessionPlan& plan, const SessionBuffers& buffers, const PassKv& kv)
    : layout_(plan.layout), compute_(layout_.compute()), buffers_(buffers), kv_(kv) {
  ahead_.reserve(static_cast<size_t>(kMaxPassNodes));
  path_.reserve(static_cast<size_t>(kMaxPassNodes));
}

void PassRecurrence::begin(StepMode mode) {
  if (kv_.recurrent == nullptr || mode != StepMode::kPartial || kv_.cache.pending_rows() > 0) return;
  kv_.recurrent->begin_pending(compute_);
}

void PassRecurrence::begin_growth(const Tree& tree, int64_t first, int32_t followed) {
  if (kv_.recurrent == nullptr) return;
  CHECK(followed < first, "followed=", followed, " first=", first);
  if (first == 0) ahead_.clear();
  if (followed >= 0) move_ahead(tree, followed);
  const StepInputs& host = buffers_.host_inputs();
  *host.ahead_row = ahead_.empty() ? -1 : ahead_.back();
  *host.ahead_length = static_cast<int32_t>(ahead_.size());
}

// A call costs what replaying a token or two of the path costs, in every layer of each later pass.
void PassRecurrence::move_ahead(const Tree& tree, int32_t followed) {
  path_.clear();
  for (int32_t node = followed; node >= 0; node = tree.parents[static_cast<size_t>(node)]) path_.push_back(node);
  std::reverse(path_.begin(), path_.end());
  if (path_ == ahead_) return;
  const bool goes_on = !ahead_.empty() && ahead_.size() < path_.size() && path_[ahead_.size() - 1] == ahead_.back();
  if (!goes_on) {
    ahead_.clear();
    kv_.recurrent->begin_pending(compute_);
  }
  const int64_t count = static_cast<int64_t>(path_.size() - ahead_.size());
  const int32_t* const source = buffers_.upload_source(std::span(path_).last(static_cast<size_t>(count)));
  kv_.recurrent->commit_pending(source, count, compute_);
  ahead_ = path_;
}

void PassRecurrence::run(const Pass& pass, const LayerWeights& weights, int64_t place, const PassScope& scope) const {
  const StepInputs& in = buffers_.step().inputs;
  const RecurrentState& states = *kv_.recurrent;
  DeltaState at = delta_state(states, place);
  if (scope.grows) {
    at.ahead = {.state = states.pending_state(place), .row = in.ahead_row, .length = in.ahead_length};
  } else if (scope.mode == StepMode::kPartial) {
    at.state = states.pending_state(place);
    at.conv = states.pending_conv(place);
  }
  delta_pass(pass, weights, at,
             {.positions = pass.positions,
              .committed = in.committed,
              .path = in.path,
              .path_stride = layout_.path_stride(),
              .first = scope.grows ? in.first_row : nullptr},
             buffers_.step().delta);
}

void PassRecurrence::commit(const int32_t* source, int64_t count, StepMode mode) {
  if (kv_.recurrent == nullptr) return;
  if (mode == StepMode::kPartial) {
    kv_.recurrent->commit_pending(source, count, compute_);
  } else {
    kv_.recurrent->commit(source, count, compute_);
  }
}

}  // namespace headrace
