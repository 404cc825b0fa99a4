// An EAGLE-3 draft head on disk, opened: its config and its tensors, from any of the published layouts (EAGLE-3, arXiv
// 2503.01840; SafeAILab, SpecForge, AngelSlim, speculators), checked against the target it is to draft for. Safetensors
// or PyTorch's own files, as they come. Nothing is guessed: a tensor that is missing, one too many, or a size that does
// not fit is an Error. Thread: const methods from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/tensor_files.h"
#include "runtime/model/tensor_source.h"

namespace headrace {

// One decoder layer whose attention reads [RMSNorm(embedding); RMSNorm(g)], g = fc . [low; mid; high] of the target's
// states, or the head's own last output.
struct Eagle3Config {
  int64_t hidden = 0, heads = 0, kv_heads = 0, ffn = 0, max_positions = 0;
  int64_t head_dim = 0;  // from the rows of q_proj, whatever the config says
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
  bool own_embedding = false;         // else the target's: the head was trained with a frozen copy of it
  bool own_head = true;               // else the target's lm_head: only where it drafts the whole vocabulary
};

// Its tensors carry one set of names: "fc.0.weight" to "fc.2.weight" (the column blocks of fc, [hidden, target_hidden]
// each), "midlayer.self_attn.q_proj.weight" and so on, "fc_norm.0.weight", "norm.weight", "lm_head.weight",
// "embed_tokens.weight".
class Eagle3Checkpoint final : public TensorSource {
 public:
  // A directory with config.json. Throws Error(kBadInput) that names the file, and both values where the head does not
  // fit `target`.
  Eagle3Checkpoint(const std::string& directory, const ModelConfig& target);

  const Eagle3Config& config() const { return config_; }
  // The target's id of each draft id, ascending, [vocab].
  const std::vector<int32_t>& target_ids() const { return target_ids_; }

  void read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type, void* dst) const override;
  void release_pages(const TensorInfo& tensor) const override;

 private:
  struct Place {
    size_t file_tensor = 0;    // in files_
    int64_t first_column = 0;  // of the stored rows
  };
  void name_tensors();
  void read_target_ids();
  void check_shapes();

  Eagle3Config config_;
  TensorFiles files_;
  std::vector<Place> places_;  // beside tensors()
  std::vector<int32_t> target_ids_;
};

// `model` as open_checkpoint takes it: a directory, or org/name in the hub cache.
std::unique_ptr<Eagle3Checkpoint> open_eagle3(const std::string& model, const ModelConfig& target);

}  // namespace headrace
