// An opened LongSpec draft layer, checked against its target (LongSpec, arXiv 2502.17421). Accepts flat names, as the
// published layers have them, or the prefix "draft_model." or "glide." of its training code, whose files may also
// contain the target. Nothing is guessed: a missing or additional tensor, or a size that does not match, is an Error.
// Thread: const methods from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/draft/checkpoint.h"
#include "runtime/model/config.h"

namespace headrace {

// Heads, embedding, lm_head and rotary positions are the target's.
struct LongSpecConfig {
  int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  double rms_eps = 1e-6;
  int64_t window = 512;  // rows that its self-attention sees

  LayerSpec layer() const {
    return {.mixer = AttentionSpec{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .qkv_bias = true},
            .ffn = {.width = ffn}};
  }
};

// Tensors have the flat names: "self_attn.q_proj.weight" and so on.
class LongSpecCheckpoint final : public DraftCheckpoint {
 public:
  // A directory with config.json. Throws Error(kBadInput) that names the file, and both values if the layer does not
  // match `target`.
  LongSpecCheckpoint(const std::string& directory, const ModelConfig& target);

  const LongSpecConfig& config() const { return config_; }

 private:
  void name_tensors();

  LongSpecConfig config_;
};

// `model` as for open_checkpoint: a directory, or org/name in the hub cache.
std::unique_ptr<LongSpecCheckpoint> open_longspec(const std::string& model, const ModelConfig& target);

}  // namespace headrace
