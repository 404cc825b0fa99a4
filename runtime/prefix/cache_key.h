// Everything that decides the bits of a saved row besides its tokens: a row is only used if all of it is equal. Weights
// count by content, not by file name. Reads all weights, on the device's threads. Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "offload/device/device.h"
#include "runtime/model/checkpoint.h"
#include "runtime/prefix/block.h"

namespace headrace {

// Raise it with every change that may alter a bit of a row made by prefill, or the layout of a saved block: a kernel,
// an order of sums, a rounding, the sizes of groups, segments or tiles. (If it is forgotten, a new build uses rows of
// an old one: every test that compares saved prefixes with fresh runs still passes, but text differs between versions.)
constexpr uint32_t kNumericsVersion = 10;

PrefixKey weights_fingerprint(const TensorSource& source, int threads);

struct RowsKeyInput {
  PrefixKey weights{};
  const ModelConfig* config = nullptr;  // with --rope-* applied
  DType dtype{}, k_type{}, v_type{};
  std::optional<WeightType> quantised;  // what matrices are quantised to as they are loaded; none: none is
  int64_t prefill_group = 0;
  bool prefill_int8 = false;
  bool keeps_blocks = false;  // quantised matrices are multiplied by the values of their blocks
};
PrefixKey rows_cache_key(const RowsKeyInput& rows, const Device& device);

}  // namespace headrace
