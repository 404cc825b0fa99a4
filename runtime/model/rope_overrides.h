// The RoPE settings of --rope-* and --draft-rope-*, which replace a model's own. Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/model/config.h"

namespace headrace {

struct RopeOverrides {
  std::optional<RopeScaling> scaling{};  // --rope-scaling
  double factor = 0;                     // --rope-scale: the factor by which the context grows; 0: the model's
  double theta = 0;                      // --rope-freq-base; 0: the model's
  int64_t original_positions = 0;        // --yarn-orig-ctx, --draft-yarn-orig-ctx; 0: the model's
};

// The flags that errors name.
struct RopeFlags {
  const char *scaling, *scale, *theta, *original;
};
constexpr RopeFlags kTargetRopeFlags = {"--rope-scaling", "--rope-scale", "--rope-freq-base", "--yarn-orig-ctx"};
constexpr RopeFlags kDraftRopeFlags = {"--draft-rope-scaling", "--draft-rope-scale", "--draft-rope-theta",
                                       "--draft-yarn-orig-ctx"};

// Applies the settings to a model's own, whose positions grow with the factor. Throws Error(kUsage) for settings that
// contradict each other.
void override_rope(const RopeOverrides& overrides, const RopeFlags& flags, RopeConfig* rope, int64_t* max_positions);
// The config of a target with these settings applied.
ModelConfig with_rope(ModelConfig config, const RopeOverrides& overrides);

// The value of --rope-scaling: "none", "linear", "llama3", "yarn".
const char* rope_scaling_name(RopeScaling scaling);

}  // namespace headrace
