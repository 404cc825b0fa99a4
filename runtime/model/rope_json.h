// Reads a config.json's settings of rotary positions, in all published forms. Pure. Only .cc files include it, like
// json_file.h.
#pragma once

#include <cstdint>

#include "runtime/base/json_file.h"
#include "runtime/model/config.h"

namespace headrace {

// What a family may have; for the others it is an error.
struct RopeAllowed {
  bool query_scale = false;  // q is scaled by its position
  bool part = false;         // a part of the dimensions is rotated: rotary_part()
  double theta = 10000.0;    // where no key says it
};
// rope_theta and rope_scaling, or rope_parameters. Throws Error(kBadInput).
RopeConfig parse_rope(const JsonFields& fields, int64_t max_positions, RopeAllowed allowed = {});
// partial_rotary_factor, of rope_parameters or beside them.
double rotary_part(const JsonFields& fields, double absent);

}  // namespace headrace
