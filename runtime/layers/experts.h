// The feed-forward part of a layer with experts. Its products are those of the decode path, so an expert's matrices are
// read as they are stored; prefill in 8 bits has products of its own (int8_experts.h). Free functions over views;
// nothing is owned and nothing waits.
#pragma once

#include "runtime/layers/forward.h"

namespace headrace {

// The scores of all experts -> pass.work.experts.scores, by the norm of `hidden` -> pass.work.normed.
void score_experts(const Pass& pass, const LayerWeights& layer, const void* hidden);

// hidden += what each row's experts make of its norm, in place.
void experts_forward(const Pass& pass, const LayerWeights& layer, void* hidden);

}  // namespace headrace
