// The RoPE settings of --rope-*, which replace the model's own. A plain value; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/model/config.h"

namespace headrace {

struct RopeOverrides {
  std::optional<RopeScaling> scaling{};  // --rope-scaling
  double factor = 0;                     // --rope-scale: the factor by which the context grows; 0: the model's
  double theta = 0;                      // --rope-freq-base; 0: the model's
  int64_t original_positions = 0;        // --yarn-orig-ctx; 0: the model's
};
// The model's config with these settings applied. Throws Error(kUsage) for settings that contradict each other.
ModelConfig with_rope(ModelConfig config, const RopeOverrides& overrides);

}  // namespace headrace
