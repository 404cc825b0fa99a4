// The config of an EAGLE-3 head: sizes, RoPE, and the differences between publishers. A plain value.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/model/config.h"

namespace headrace {

// One decoder layer whose attention reads [RMSNorm(embedding); RMSNorm(g)], g = fc . [low; mid; high] of the target's
// states, or the head's own last output.
struct Eagle3Config {
  int64_t hidden = 0, heads = 0, kv_heads = 0, ffn = 0, max_positions = 0;
  int64_t head_dim = 0;  // from the rows of q_proj, not from the config
  int64_t vocab = 0;     // ids it can draft
  double rms_eps = 1e-6;
  RopeConfig rope;
  int64_t sliding_window = 0;  // rows a query sees, itself included; 0: all
  // The target's residual streams that it reads are those *entering* these layers (0-based, ascending, below the
  // target's number of layers).
  std::array<int64_t, 3> feature_layers = {};
  int64_t target_hidden = 0, target_vocab = 0;
  bool norm_before_residual = false;  // the attention's residual is RMSNorm(g), not g (speculators)
  bool fc_norm = false;               // each of the three states is normed before fc (EAGLE-3.1)
  bool norm_output = false;           // RMSNorm(o; norm), not o, is fed back (EAGLE-3.1)
  bool own_embedding = false;         // false: the target's, of which the head was trained with a frozen copy
  bool own_head = true;               // false: the target's lm_head; only if the head drafts the whole vocabulary

  LayerSpec layer() const {
    return {.mixer = AttentionSpec{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim}, .ffn = {.width = ffn}};
  }
};

// Parses config.json, in the spellings of SafeAILab, SpecForge and AngelSlim (flat) and of speculators (nested in
// transformer_layer_config), and checks it against the target. Eagle3Checkpoint sets what only the tensors show
// (head_dim, an fc_norm that the config does not name, whose embedding and lm_head). Throws Error(kBadInput) that names
// the file, and both values of a mismatch.
Eagle3Config parse_eagle3_config(std::string_view json, const std::string& source, const ModelConfig& target);

}  // namespace headrace
