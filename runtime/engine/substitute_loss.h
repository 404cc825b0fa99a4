// What partial steps get wrong because they multiply substitutes of weights (docs/measuring.md, "Substitutes of
// weights"). Pure.
#pragma once

#include "runtime/model/weights.h"

namespace headrace {

// The share of judged pending tokens that refreshes rejected where all layers had substitutes and rows were exact:
// SmolLM2-64K at T = 0.8 (bench/results/substitutes_cpu.txt). Larger models suffer less from few bits, so what auto
// expects of them is too little, and a run's own share soon takes its place.
constexpr double substitute_loss(WeightType type) {
  switch (type) {
    case WeightType::kQ8_0:
      return 0.026;
    case WeightType::kQ6K:
      return 0.046;
    case WeightType::kQ5K:
      return 0.117;
    default:
      return 0.17;
  }
}
// Of a tree, which keeps second choices: as much less as with an int4 copy of rows, which errs about as often.
constexpr double substitute_loss(WeightType type, bool tree) { return substitute_loss(type) * (tree ? 0.5 : 1); }

// Of partial steps with both.
constexpr double joined_loss(double rows, double weights) { return 1 - (1 - rows) * (1 - weights); }

}  // namespace headrace
