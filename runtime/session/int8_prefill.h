// What prefill in 8 bits needs beside the rest of prefill: the converted matrices of a layer, its rows in 8 bits, and
// the attention over both kinds of rows (docs/design.md, section 6; kernels/int8/op.h, kernels/int8_attention/op.h).
// Views; owns nothing. Internal to Executor. Thread: the executor's.
#pragma once

#include <cstdint>

#include "kernels/int8_attention/op.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/layers/int8_forward.h"

namespace headrace {

struct Int8PrefillWork {
  Int8Layer layer{};
  Int8KvRows kv{};                 // of the layer that is being built, for the whole prompt
  float* centre = nullptr;         // [kv_heads, head_dim]
  std::byte* workspace = nullptr;  // of int8_attention()

  struct Size {
    const ModelConfig& config;
    Int8LayerSize layer;
    int64_t prompt;  // tokens
  };
  static Int8PrefillWork carve(const Size& size, BumpAllocator& allocator);
};

// Whether a layer attends in 8 bits in such a prefill.
inline bool attends_in_int8(const AttentionSpec& attention) {
  return attention.window == 0 && attention.head_dim <= kMaxInt8AttentionHeadDim;
}

// prefill_attention() of a group of rows in 8 bits: converts the layer's rows from `converted` on, up to the last whole
// tile of the group, and returns where they end. Queries below kInt8CentreRows attend as in prefill_attention().
int64_t int8_prefill_attention(const PrefillAttentionParams& group, const Int8PrefillWork& work, int64_t converted,
                               Stream& stream);

}  // namespace headrace
