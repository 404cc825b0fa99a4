// Reads a config.json's settings of rotary positions, in all published forms. Pure. Only .cc files include it, like
// json_file.h.
#pragma once

#include <cstdint>

#include "runtime/base/json_file.h"
#include "runtime/model/config.h"

namespace headrace {

// rope_theta and rope_scaling, or rope_parameters. Throws Error(kBadInput). `scales_queries`: the family may scale q by
// its position; for the others that is an error.
RopeConfig parse_rope(const JsonFields& fields, int64_t max_positions, bool scales_queries = false);

}  // namespace headrace
