#include "runtime/session/recur.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace headrace {

PassRecurrence::PassRecurrence(const SessionLayout& layout, const SessionBuffers& buffers)
    : layout_(layout), compute_(layout.compute()), buffers_(buffers) {}

void PassRecurrence::begin(const PassScope& scope) const {
  RecurrentState* const states = scope.sequence.recurrent();
  if (states == nullptr || scope.mode != StepMode::kPartial || scope.sequence.pending_rows() > 0) return;
  states->begin_pending(compute_);
}

void PassRecurrence::begin_growth(Sequence& sequence, const Tree& tree, int64_t first, int32_t followed) const {
  if (sequence.recurrent() == nullptr) return;
  CHECK(followed < first, "followed=", followed, " first=", first);
  std::vector<int32_t>& ahead = sequence.ahead();
  if (first == 0) ahead.clear();
  if (followed >= 0) move_ahead(sequence, tree, followed);
  const StepInputs& host = buffers_.host_inputs();
  *host.ahead_row = ahead.empty() ? -1 : ahead.back();
  *host.ahead_length = static_cast<int32_t>(ahead.size());
}

// A call costs what replaying a token or two of the path costs, in every layer of each later pass.
void PassRecurrence::move_ahead(Sequence& sequence, const Tree& tree, int32_t followed) const {
  std::vector<int32_t>& ahead = sequence.ahead();
  std::vector<int32_t> path;
  for (int32_t node = followed; node >= 0; node = tree.parents[static_cast<size_t>(node)]) path.push_back(node);
  std::reverse(path.begin(), path.end());
  if (path == ahead) return;
  const bool goes_on = !ahead.empty() && ahead.size() < path.size() && path[ahead.size() - 1] == ahead.back();
  if (!goes_on) {
    ahead.clear();
    sequence.recurrent()->begin_pending(compute_);
  }
  const int64_t count = static_cast<int64_t>(path.size() - ahead.size());
  const int32_t* const source = buffers_.upload_source(std::span(path).last(static_cast<size_t>(count)));
  sequence.recurrent()->commit_pending(source, count, compute_);
  ahead = std::move(path);
}

void PassRecurrence::run(const Pass& pass, const LayerWeights& weights, int64_t place, const PassScope& scope) const {
  const StepInputs& in = buffers_.step().inputs;
  const RecurrentState& states = *scope.sequence.recurrent();
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

void PassRecurrence::commit(const int32_t* source, int64_t count, const PassScope& scope) const {
  RecurrentState* const states = scope.sequence.recurrent();
  if (states == nullptr) return;
  if (scope.mode == StepMode::kPartial) {
    states->commit_pending(source, count, compute_);
  } else {
    states->commit(source, count, compute_);
  }
}

}  // namespace headrace
