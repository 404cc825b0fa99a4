// The EAGLE-3 draft (EAGLE-3; EAGLE-2 section 4 for the tree): one decoder layer over the target's states, a
// StateDraft. The feature of a token is `fc` of the states of three target layers. Reads weights that the engine owns.
#pragma once

#include <optional>

#include "runtime/draft/eagle3/weights.h"
#include "runtime/draft/state_draft.h"
#include "runtime/model/weights.h"

namespace headrace {

class Eagle3Draft final : public StateDraft {
 public:
  // All must outlive the draft. `target` may be loaded later, but before prefill.
  Eagle3Draft(Device& device, const Eagle3Config& config, const Eagle3Weights& weights, const Weights& target,
              const DraftSetup& options);

 private:
  std::optional<size_t> feature_index(int64_t layer) const;
  bool reads(int64_t layer) const override { return feature_index(layer).has_value(); }
  int64_t pass_room() const override { return config_.target_hidden; }
  int64_t prompt_room() const override { return config_.fc_norm ? config_.target_hidden : 0; }
  void project(const Pass& pass, const LayerInput& input, int64_t first_row, void* features, void* room) override;
  void join(const Pass& pass, const int32_t* tokens, const void* features, const Joined& to) override;
  void finish_layer(const Pass& pass) override;
  Head head() const override;

  const Eagle3Config& config_;
  const Eagle3Weights& weights_;
  const Weights& target_;
};

}  // namespace headrace
