// The EAGLE-3 draft (EAGLE-3; EAGLE-2 section 4 for the tree): one decoder layer over the target's states. A row joins
// the feature of token i, which is `fc` of the states of three target layers, with the embedding of token i + 1, and
// predicts token i + 2; its position is i. While drafting, the layer's own output replaces the feature. Rows of
// accepted tokens are computed from true features only: after every verify pass they replace the guessed ones. With a
// window its KV cache is independent of the context. Reads weights that the engine owns.
// runtime/draft/eagle3/prefill.cc has prefill.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/draft/eagle3/weights.h"
#include "runtime/draft/layer_draft.h"
#include "runtime/model/weights.h"

namespace headrace {

class Eagle3Draft final : public LayerDraft {
 public:
  // All must outlive the draft. `target` may be loaded later, but before prefill.
  Eagle3Draft(Device& device, const Eagle3Config& config, const Eagle3Weights& weights, const Weights& target,
              const DraftSetup& options);

  std::vector<PromptStates> prompt_states() override;
  void prefill_layer(const LayerInput& input) override;
  bool finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) override;
  void pass_layer(const LayerInput& input) override;
  void observe(const Tree& tree, const Acceptance& acceptance) override;
  void rewind(int64_t position) override;
  void resume(std::unique_ptr<KeptDraft> kept, int64_t rows) override;
  std::unique_ptr<KeptDraft> keep(int32_t next, int64_t position) override;

 private:
  struct Joined {
    void *token, *joined;  // [rows, hidden], [rows, 2 hidden]
  };
  struct Work {
    void* pass_features;  // [tree, hidden]: fc of the nodes of the last verify
    void* states;         // [tree, target hidden]: a layer's states as fc reads them
    void* feature;        // [rows, hidden]: the input of a forward, with its tokens
    void* output;         // [rows, hidden]: the feature for the next level
    Joined joined;
  };
  struct PrefillWork {
    void *sink_features, *features;  // [kDraftSinkRows, hidden], [kept rows, hidden]
    void* normed;                    // [group, target hidden]; null without fc_norm
    Joined joined;                   // of one group
    LayerWork layer;                 // only qkv
  };
  int64_t pass_nodes() const {
    return std::max(options_.run.pass_nodes, options_.tree.nodes + options_.run.most_pending);
  }
  std::optional<size_t> feature_index(int64_t layer) const;
  void carve(Buffers* buffers) override;
  void carve_prefill(Buffers* buffers);
  Round catch_up(int32_t root, int64_t position) override;
  const float* forward_root(const Round&) override { return layers_.logits; }  // computed by catch_up()
  const float* forward_level(const Round& round, int64_t level, const DraftRows& rows) override;

  int64_t first_prompt_row() const;   // the first that the cache keeps
  int64_t first_feature_row() const;  // the first whose features are kept: no later
  int64_t sink_features() const;      // rows before them
  int64_t most_sink_features() const;
  void project_prompt(const LayerInput& input, const PromptStates& to);

  void project(const Pass& pass, const LayerInput& input, int64_t first_row, void* features, void* states);
  void join(const Pass& pass, const int32_t* tokens, const void* features, const Joined& to);
  void finish_layer(const Pass& pass);
  void forward(const DraftRows& rows);
  void predict(int64_t first, int64_t count);
  uint64_t bytes(int64_t elements) const { return static_cast<uint64_t>(elements) * dtype_bytes(decoder_.type); }
  void gather(const void* from, int64_t from_rows, const int32_t* rows, int64_t count);

  const Eagle3Config& config_;
  const Eagle3Weights& weights_;
  const Weights& target_;
  Work work_{};
  PrefillWork prefill_{};
  std::vector<int32_t> stable_features_;  // parallel to stable_tokens_
  bool prefilled_ = false;
};

}  // namespace headrace
