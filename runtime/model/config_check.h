// Checks a model's sizes, whichever file they are from: bounds that keep every later product of two sizes within 64
// bits, and rules between sizes. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/model/config.h"

namespace headrace {

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = int64_t{1} << 20;  // hidden, heads x head_dim
constexpr int64_t kMaxFfn = int64_t{1} << 24;
constexpr int64_t kMaxExpertCount = 1024, kMaxUsedExpertCount = 32;  // kMaxExperts, kMaxUsedExperts
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr int64_t kMaxHeads = 65536, kMaxHeadDim = 65536;
constexpr int64_t kMaxComputedHeadDim = 512;  // the most that attention computes (kMaxAttentionHeadDim)
constexpr int64_t kMaxDraftHeadDim = 256;     // of drafts with a window (kMaxPlacedHeadDim, kMaxChunkHeadDim)
// Of a recurrent state's keys (kMaxDeltaKeyDim) and values (kMaxDeltaDim).
constexpr int64_t kMaxStateKeyDim = 128, kMaxStateDim = 256, kStateDimUnit = 8;
constexpr double kMaxQueryBeta = 1e3;

// The rules between sizes (heads a multiple of kv_heads, an even head_dim, …). Throws Error(kBadInput).
void check_config(const ModelConfig& config, const std::string& source);

// Those of one layer's attention, and for rotary positions alone.
void check_attention(const AttentionSpec& attention, const RopeConfig& rope, const std::string& source);
void check_rope(const RopeConfig& rope, int64_t rotary_dims, const std::string& source);

}  // namespace headrace
