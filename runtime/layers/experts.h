// The feed-forward part of a layer with experts. Its products are those of the decode path in every pass, so an
// expert's matrices are read as they are stored. Free functions over views; nothing is owned and nothing waits.
#pragma once

#include "runtime/layers/forward.h"

namespace headrace {

// hidden += what each row's experts make of its norm, in place.
void experts_forward(const Pass& pass, const LayerWeights& layer, void* hidden);

}  // namespace headrace
