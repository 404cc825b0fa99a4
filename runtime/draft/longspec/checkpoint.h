// A LongSpec draft layer on disk, opened and checked against the target it is to draft for (LongSpec, arXiv
// 2502.17421): flat names, as the published layers have them, or the prefix "draft_model." or "glide." of its training
// code, whose files may hold the target beside it. Nothing is guessed: a tensor that is missing, one too many, or a
// size that does not fit is an Error. Thread: const methods from any thread.
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
  int64_t window = 512;  // rows that its self-attention sees, of its own
};

// Its tensors carry the flat names: "self_attn.q_proj.weight" and so on.
class LongSpecCheckpoint final : public DraftCheckpoint {
 public:
  // A directory with config.json. Throws Error(kBadInput) that names the file, and both values where the layer does not
  // fit `target`.
  LongSpecCheckpoint(const std::string& directory, const ModelConfig& target);

  const LongSpecConfig& config() const { return config_; }

 private:
  void name_tensors();
  void check_shapes() const;

  LongSpecConfig config_;
};

// `model` as open_checkpoint takes it: a directory, or org/name in the hub cache.
std::unique_ptr<LongSpecCheckpoint> open_longspec(const std::string& model, const ModelConfig& target);

}  // namespace headrace
