// The feed-forward part of a layer with experts. Its products are those of the decode path, so an expert's matrices are
// read as they are stored; prefill in 8 bits has products of its own (int8_experts.h). Free functions over views;
// nothing is owned and nothing waits.
#pragma once

#include <functional>

#include "kernels/experts/op.h"
#include "runtime/layers/forward.h"

namespace headrace {

// The scores of all experts, a shared one's behind them -> pass.work.experts.scores, by the norm of `hidden` ->
// pass.work.normed.
void score_experts(const Pass& pass, const LayerWeights& layer, const void* hidden);

// Chooses the experts of rows [first, first + rows) by their scores, and lists the rows by expert. Also from which rows
// they are, and which experts have any, where pass.work.experts has room for that; then a shared expert that is the
// last of them has all rows.
void list_experts(const Pass& pass, const LayerWeights& layer, int64_t first, int64_t rows);

// Of rows from `first` on, in pass.work.branch: what add_experts() adds; nothing where no expert is shared.
SharedOutput shared_output(const Pass& pass, const LayerWeights& layer, int64_t first);

// hidden += what each row's experts make of its norm, in place. `shared` enqueues what a shared expert makes of
// pass.work.normed to pass.work.branch, where it is none of the experts that are multiplied together.
void experts_forward(const Pass& pass, const LayerWeights& layer, const std::function<void()>& shared, void* hidden);
// Of a layer whose experts are beside its dense part: hidden = (hidden + norm(norm(dense) + norm(experts))) * scalar.
// `dense` enqueues what the dense part makes of `hidden`, not normalised, to pass.work.branch.
void experts_beside(const Pass& pass, const LayerWeights& layer, const std::function<void()>& dense, void* hidden);

}  // namespace headrace
