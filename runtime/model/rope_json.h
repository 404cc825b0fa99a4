// What a config.json says about rotary positions, in the forms that have been published. Pure. Included by .cc files
// only, as json_file.h is.
#pragma once

#include <cstdint>

#include "runtime/base/json_file.h"
#include "runtime/model/config.h"

namespace headrace {

// rope_theta and rope_scaling, or rope_parameters. Throws Error(kBadInput).
RopeConfig parse_rope(const JsonFields& fields, int64_t max_positions);

}  // namespace headrace
