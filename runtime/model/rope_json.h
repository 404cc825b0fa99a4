// Reads a config.json's settings of rotary positions, in all published forms. Pure. Only .cc files include it, like
// json_file.h.
#pragma once

#include <cstdint>

#include "runtime/base/json_file.h"
#include "runtime/model/config.h"

namespace headrace {

// rope_theta and rope_scaling, or rope_parameters. Throws Error(kBadInput).
RopeConfig parse_rope(const JsonFields& fields, int64_t max_positions);

}  // namespace headrace
