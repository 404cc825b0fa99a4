#include "runtime/model/rope_overrides.h"

#include "cache/base.h"

namespace headrace {
namespace {

constexpr int64_t kMaxPositions = int64_t{1} << 30;

}  // namespace

ModelConfig with_rope(ModelConfig config, const RopeOverrides& overrides) {
  RopeConfig& rope = config.rope;
  const int64_t own_positions = config.max_positions;
  if (overrides.theta > 0) rope.theta = overrides.theta;
  if (overrides.scaling) {
    rope = {.theta = rope.theta, .scaling = *overrides.scaling, .frequency_factors = {}};
    if (rope.scaling == RopeScaling::kYarn) rope.original_max_positions = own_positions;
  }
  if (overrides.factor > 0) {
    if (rope.scaling != RopeScaling::kLinear && rope.scaling != RopeScaling::kYarn) {
      throw_error(ExitCode::kUsage, "--rope-scale", str(overrides.factor, " needs a scaling that has a factor"),
                  "Add --rope-scaling linear or yarn.");
    }
    const double grown = static_cast<double>(own_positions) / rope.factor * overrides.factor;
    if (grown > static_cast<double>(kMaxPositions)) {
      throw_error(ExitCode::kUsage, "--rope-scale",
                  str(overrides.factor, " times ", own_positions, " positions is too many"));
    }
    rope.factor = overrides.factor;
    config.max_positions = static_cast<int64_t>(grown);
  }
  if (overrides.original_positions > 0) {
    if (rope.scaling != RopeScaling::kYarn) {
      throw_error(ExitCode::kUsage, "--yarn-orig-ctx", "means something with --rope-scaling yarn only");
    }
    rope.original_max_positions = overrides.original_positions;
  }
  return config;
}

}  // namespace headrace
