// The feed-forward part of a layer with experts. Its products are those of the decode path, so an expert's matrices are
// read as they are stored; prefill in 8 bits has products of its own (int8_experts.h). Free functions over views;
// nothing is owned and nothing waits.
#pragma once

#include <functional>

#include "runtime/layers/forward.h"

namespace headrace {

// The scores of all experts -> pass.work.experts.scores, by the norm of `hidden` -> pass.work.normed.
void score_experts(const Pass& pass, const LayerWeights& layer, const void* hidden);

// Chooses the experts of rows [first, first + rows) by their scores, and lists the rows by expert. Also from which rows
// they are, and which experts have any, where pass.work.experts has room for that.
void list_experts(const Pass& pass, const LayerWeights& layer, int64_t first, int64_t rows);

// hidden += what each row's experts make of its norm, in place.
void experts_forward(const Pass& pass, const LayerWeights& layer, void* hidden);
// Of a layer whose experts are beside its dense part: hidden = (hidden + norm(norm(dense) + norm(experts))) * scalar.
// `dense` enqueues what the dense part makes of `hidden`, not normalised, to pass.work.branch.
void experts_beside(const Pass& pass, const LayerWeights& layer, const std::function<void()>& dense, void* hidden);

}  // namespace headrace
