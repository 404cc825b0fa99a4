// What --rope-* puts in the place of the model's own rope settings. A plain value; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/model/config.h"

namespace headrace {

struct RopeOverrides {
  std::optional<RopeScaling> scaling{};  // --rope-scaling
  double factor = 0;                     // --rope-scale: the context grows by it; 0: the model's
  double theta = 0;                      // --rope-freq-base; 0: the model's
  int64_t original_positions = 0;        // --yarn-orig-ctx; 0: the model's
};
// The model's config with these in place. Throws Error(kUsage) for settings that contradict each other.
ModelConfig with_rope(ModelConfig config, const RopeOverrides& overrides);

}  // namespace headrace
