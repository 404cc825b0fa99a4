// An opened EAGLE-3 draft head: config and tensors, in any of the published layouts (EAGLE-3, arXiv 2503.01840;
// SafeAILab, SpecForge, AngelSlim, speculators), checked against its target. Reads safetensors or PyTorch files.
// Nothing is guessed: a missing or additional tensor, or a size that does not match, is an Error. Thread: const methods
// from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/draft/checkpoint.h"
#include "runtime/draft/eagle3/config.h"
#include "runtime/model/config.h"

namespace headrace {

// All layouts get one set of names: "fc.0.weight" to "fc.2.weight" (the column blocks of fc, [hidden, target_hidden]
// each), "midlayer.self_attn.q_proj.weight" and so on, "fc_norm.0.weight", "norm.weight", "lm_head.weight",
// "embed_tokens.weight".
class Eagle3Checkpoint final : public DraftCheckpoint {
 public:
  // A directory with config.json. Throws Error(kBadInput) that names the file, and both values if the head does not
  // match `target`.
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

// `model` as for open_checkpoint: a directory, or org/name in the hub cache.
std::unique_ptr<Eagle3Checkpoint> open_eagle3(const std::string& model, const ModelConfig& target);

}  // namespace headrace
