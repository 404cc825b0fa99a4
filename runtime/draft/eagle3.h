// The EAGLE-3 draft (EAGLE-3; EAGLE-2 section 4 for the tree): one decoder layer over the target's own states. A row
// joins the feature of token i, which is `fc` of three of the target's layers' states, with the embedding of token
// i + 1, and predicts token i + 2; its position is i. Drafting goes on from the layer's own output in the feature's
// place. Rows of accepted tokens are made from true features only: after every verify they take the place of what was
// guessed. With a window its KV cache is constant in the context.
//
// A round stays on the device: levels are grown and the tree is cut there, for the target's pass, or for one small copy
// that brings it to the host.
// Owns the run's buffers; reads weights that the engine owns. Thread: as draft.h says. Prefill is in eagle3_prefill.cc.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "offload/graph.h"
#include "runtime/carver.h"
#include "runtime/draft/draft.h"
#include "runtime/draft/draft_cache.h"
#include "runtime/draft/draft_layer.h"
#include "runtime/draft/eagle3_weights.h"
#include "runtime/draft/tree_builder.h"
#include "runtime/model/weights.h"

namespace headrace {

class Eagle3Draft final : public Draft {
 public:
  // All must outlive the draft. `target` may be loaded later, but before prefill.
  Eagle3Draft(Device& device, const Eagle3Config& config, const Eagle3Weights& weights, const Weights& target,
              const DraftSetup& options);
  ~Eagle3Draft() override;

  DraftMemory memory() const override;
  void allocate(Stream& compute) override;
  std::vector<PromptStates> prompt_states() override;
  void prefill_layer(const LayerInput& input) override;
  bool finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) override;
  void propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) override;
  ProposedTree propose_into(int32_t root, int64_t position, const TreeLimits& limits, const TreeInputs& to) override;
  void pass_layer(const LayerInput& input) override;
  void observe(const Tree& tree, const Acceptance& acceptance) override;
  void rewind(int64_t position) override;

 private:
  struct Inputs;
  struct Work;
  struct PrefillWork;
  // One tree.
  struct Round {
    int64_t accepted, rows;  // of the last step, and what is forwarded for them
    int64_t deepest;         // no row of the round is at a larger position
  };
  // [RMSNorm(embedding of a token); RMSNorm(its feature)] -> q, k, v.
  struct Join {
    const int32_t* tokens;
    const void* features;
    void *token, *joined, *qkv;
    int64_t rows;
    ProductPath path;
  };
  int64_t padded(int64_t rows) const { return padded_rows(device_.backend(), rows); }
  int64_t pass_nodes() const { return std::max(options_.pass_nodes, options_.tree.nodes + options_.most_pending); }
  std::optional<size_t> feature_index(int64_t layer) const;
  TreeSetup tree_setup() const;
  Inputs carve_inputs(Carver& carver) const;
  Work carve(Carver& carver) const;
  PrefillWork carve_prefill(Carver& carver) const;
  DraftBufferSizes buffer_sizes() const;
  uint64_t product_check_bytes() const;

  int64_t prompt_list_rows() const;
  int64_t first_prompt_row() const;   // of those that the window keeps
  int64_t first_feature_row() const;  // of those whose features are kept: no later
  int64_t sink_features() const;      // rows before them
  void project_prompt(const LayerInput& input, const PromptStates& to);
  void join_prompt(int64_t first, int64_t count, const void* features);

  void project(const LayerInput& input, int64_t first_row, int64_t rows, void* features, void* normed,
               ProductPath path);
  void join(const Join& j);
  void finish_layer(int64_t rows);
  void forward(const DraftRows& rows);
  void predict(int64_t first, int64_t count);
  void gather(const void* from, int64_t from_rows, const int32_t* rows, int64_t count);
  void play_round(int32_t root, int64_t position, const TreeInputs& to);
  Round upload_round(int64_t accepted, const TreeInputs& to);
  Replay::Key key_of(int64_t part, const Round& round) const;
  void forget_stable(int64_t count);
  void catch_up(const Round& round);
  void grow_tree(const Round& round, const TreeRows& to);

  Device& device_;
  const Eagle3Config& config_;
  const Eagle3Weights& weights_;
  const Weights& target_;
  const DraftSetup options_;
  const DraftLayerSizes sizes_;
  const DraftCacheShape shape_;
  Stream* compute_ = nullptr;
  DraftBuffers buffers_;
  std::unique_ptr<Work> work_;
  std::unique_ptr<PrefillWork> prefill_;
  std::unique_ptr<Inputs> host_;
  std::optional<DraftLayer> layer_;
  std::optional<DraftCache> cache_;
  std::optional<TreeBuilder> builder_;
  Replay replay_{16};
  std::vector<int32_t> stable_tokens_, stable_features_;  // accepted, not yet in the cache
};

}  // namespace headrace
