// An EAGLE-3 draft head on disk, opened: its config and its tensors, from any of the published layouts (EAGLE-3, arXiv
// 2503.01840; SafeAILab, SpecForge, AngelSlim, speculators), checked against the target it is to draft for. Safetensors
// or PyTorch's own files, as they come. Nothing is guessed: a tensor that is missing, one too many, or a size that does
// not fit is an Error. Thread: const methods from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/draft/checkpoint.h"
#include "runtime/draft/eagle3/config.h"
#include "runtime/model/config.h"

namespace headrace {

// Its tensors carry one set of names: "fc.0.weight" to "fc.2.weight" (the column blocks of fc, [hidden, target_hidden]
// each), "midlayer.self_attn.q_proj.weight" and so on, "fc_norm.0.weight", "norm.weight", "lm_head.weight",
// "embed_tokens.weight".
class Eagle3Checkpoint final : public DraftCheckpoint {
 public:
  // A directory with config.json. Throws Error(kBadInput) that names the file, and both values where the head does not
  // fit `target`.
  Eagle3Checkpoint(const std::string& directory, const ModelConfig& target);

  const Eagle3Config& config() const { return config_; }
  // The target's id of each draft id, ascending, [vocab].
  const std::vector<int32_t>& target_ids() const { return target_ids_; }

 private:
  void name_tensors();
  void read_target_ids();
  void check_shapes();
  void check_shared();

  Eagle3Config config_;
  std::vector<int32_t> target_ids_;
};

// `model` as open_checkpoint takes it: a directory, or org/name in the hub cache.
std::unique_ptr<Eagle3Checkpoint> open_eagle3(const std::string& model, const ModelConfig& target);

}  // namespace headrace
