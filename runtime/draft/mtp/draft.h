// The MTP block of a model's own file as a draft (Qwen3.5; runtime/model/weights.h): a StateDraft. The feature of a
// token is the target's state after its last norm. `fc` joins it with the embedding of the next token, and the block is
// an ordinary attention layer with rows of its own. Its normalised output is multiplied with the target's head, and is
// the feature while drafting. Distances alone count in the layer, so a row's position is that of its feature. Reads
// weights of the target; owns none.
#pragma once

#include "runtime/draft/state_draft.h"
#include "runtime/model/weights.h"

namespace headrace {

class MtpDraft final : public StateDraft {
 public:
  // Both must outlive the draft. `target`, whose block it is, may be loaded later, but before prefill.
  MtpDraft(Device& device, const ModelConfig& config, const Weights& target, const DraftSetup& options);

  void prefill_layer(const LayerInput& input) override;

 private:
  void carve(Buffers* buffers) override;
  bool reads(int64_t layer) const override { return layer == layers_of_target_; }
  void project(const Pass& pass, const LayerInput& input, int64_t first_row, void* features, void* room) override;
  void join(const Pass& pass, const int32_t* tokens, const void* features, const Joined& to) override;
  void finish_layer(const Pass& pass) override;
  Head head() const override { return {.norm = nullptr, .weight = target_.head()}; }
  // Only for saved prefixes: else the states themselves are still there when they are needed.
  bool keeps_prompt_features() const override { return options_.run.saves; }
  const void* prompt_features(int64_t first, int64_t rows) override;

  const int64_t layers_of_target_;
  const Weights& target_;
  const MtpWeights& block_;
  LayerInput prompt_states_{};      // of the whole prompt, from prefill_layer() to finish_prefill()
  void* group_features_ = nullptr;  // [group, hidden], of a prompt
  void* matrix_ = nullptr;          // where a quantised matrix is dequantised for a prompt's product; null: nowhere
};

}  // namespace headrace
