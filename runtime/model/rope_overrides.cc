#include "runtime/model/rope_overrides.h"

#include "cache/base.h"

namespace headrace {
namespace {

constexpr int64_t kMaxPositions = int64_t{1} << 30;

void set_factor(double factor, int64_t own_positions, const RopeFlags& flags, RopeConfig* rope,
                int64_t* max_positions) {
  if (rope->scaling != RopeScaling::kLinear && rope->scaling != RopeScaling::kYarn) {
    throw_error(ExitCode::kUsage, flags.scale, str(factor, " needs a scaling that has a factor"),
                str("Add ", flags.scaling, " linear or yarn."));
  }
  const double grown = static_cast<double>(own_positions) / rope->factor * factor;
  if (grown > static_cast<double>(kMaxPositions)) {
    throw_error(ExitCode::kUsage, flags.scale, str(factor, " times ", own_positions, " positions is too many"));
  }
  rope->factor = factor;
  *max_positions = static_cast<int64_t>(grown);
}

}  // namespace

void override_rope(const RopeOverrides& overrides, const RopeFlags& flags, RopeConfig* rope, int64_t* max_positions) {
  int64_t own_positions = *max_positions;
  if (overrides.theta > 0) rope->theta = overrides.theta;
  if (overrides.scaling) {  // in place of the model's own
    const auto unscaled = static_cast<int64_t>(static_cast<double>(own_positions) / rope->factor);
    const bool yarn = rope->scaling == RopeScaling::kYarn && unscaled == rope->original_max_positions;
    if (yarn || rope->scaling == RopeScaling::kLinear)
      own_positions = unscaled;  // else the scaling is not what made it
    *max_positions = own_positions;
    *rope = {.theta = rope->theta,
             .scaling = *overrides.scaling,
             .turning_dims = rope->turning_dims,
             .query_beta = rope->query_beta,
             .query_step = rope->query_step,
             .frequency_factors = {}};
    if (rope->scaling == RopeScaling::kYarn) rope->original_max_positions = own_positions;
  }
  if (overrides.factor > 0) set_factor(overrides.factor, own_positions, flags, rope, max_positions);
  if (overrides.original_positions > 0) {
    if (rope->scaling != RopeScaling::kYarn) {
      throw_error(ExitCode::kUsage, flags.original,
                  str(overrides.original_positions, " means something with ", flags.scaling, " yarn only"));
    }
    rope->original_max_positions = overrides.original_positions;
  }
  if (rope->scaling == RopeScaling::kYarn && rope->theta <= 1) {  // a config's own was checked when it was read
    const bool by_theta = overrides.theta > 0;
    throw_error(ExitCode::kUsage, by_theta ? flags.theta : flags.scaling,
                by_theta ? str(rope->theta, " must be above 1 for yarn")
                         : str("yarn needs a base above 1; the model's is ", rope->theta));
  }
}

ModelConfig with_rope(ModelConfig config, const RopeOverrides& overrides) {
  override_rope(overrides, kTargetRopeFlags, &config.rope, &config.max_positions);
  return config;
}

const char* rope_scaling_name(RopeScaling scaling) {
  constexpr const char* kNames[] = {"none", "linear", "llama3", "yarn"};
  return kNames[static_cast<size_t>(scaling)];
}

}  // namespace headrace
