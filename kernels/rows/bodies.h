// The bodies of kernels/rows/op.h. Internal to the op.
#pragma once

#include <cstdint>

#include "kernels/cuda/bodies.h"
#include "kernels/rows/op.h"

namespace headrace::kernels {

HEADRACE_BODIES(quantise_rows, RowsParams)
HEADRACE_BODIES(dequantise_rows, RowsParams)
HEADRACE_BODIES(quantise_ring, QuantiseRingParams)
HEADRACE_BODIES(commit_rows, CommitParams)
HEADRACE_BODIES(fill_ring, FillRingParams)
HEADRACE_BODIES(place_rows, PlaceRowsParams)
HEADRACE_BODIES(make_keys, MakeKeysParams)
HEADRACE_BODIES(encode_remainders, EncodeRemaindersParams)
HEADRACE_BODIES(decode_remainders, DecodeRemaindersParams)

constexpr int kMaxCodeBits = 8;  // of a remainder's code
// Set in EncodeRemaindersParams::words if the rows were not made from these values: more than any room.
constexpr uint32_t kNotTheseRows = uint32_t{1} << 31;

}  // namespace headrace::kernels
