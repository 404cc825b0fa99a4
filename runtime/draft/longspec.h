// The LongSpec draft (LongSpec section 3.1): one layer whose self-attention sees a window and whose cross-attention
// sees the target's own last layer, so that its memory does not grow with the context. The keys and values of its
// self-attention depend on a row's token and position alone: what the target accepted, and the prompt, need no
// attention before they are in the cache.
//     x1 = e + SelfAttn(RMSNorm(e)),  x2 = x1 + CrossAttn(RMSNorm(x1)),  x3 = x2 + MLP(RMSNorm(x2)),  logits = head(x3)
//
// A round stays on the device, as Eagle3Draft's does. Owns the run's buffers; reads weights that the engine owns and
// the session's KV cache. Thread: as draft.h says.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "offload/graph.h"
#include "runtime/carver.h"
#include "runtime/draft/draft.h"
#include "runtime/draft/draft_cache.h"
#include "runtime/draft/draft_layer.h"
#include "runtime/draft/longspec_weights.h"
#include "runtime/draft/tree_builder.h"
#include "runtime/model/weights.h"

namespace headrace {

// What it drafts for: rope, embedding and head are this one's.
struct LongSpecTarget {
  const ModelConfig* config;
  const Weights* weights;
};

class LongSpecDraft final : public Draft {
 public:
  // All must outlive the draft. The target may be loaded later, but before prefill.
  LongSpecDraft(Device& device, const LongSpecConfig& config, const LongSpecWeights& weights,
                const LongSpecTarget& target, const DraftSetup& options);
  ~LongSpecDraft() override;

  DraftMemory memory() const override;
  bool reads_last_layer() const override { return true; }
  void allocate(Stream& compute) override;
  void attach(const KvCache& target) override { target_cache_ = &target; }
  void prefill_layer(const LayerInput&) override {}
  bool finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) override;
  void propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) override;
  ProposedTree propose_into(int32_t root, int64_t position, const TreeLimits& limits, const TreeInputs& to) override;
  void pass_layer(const LayerInput&) override {}
  void observe(const Tree& tree, const Acceptance& acceptance) override;
  void rewind(int64_t position) override;

 private:
  struct Inputs;
  struct Work;
  struct PrefillWork;
  // One tree.
  struct Round {
    int64_t stable, rows;  // the root and what was accepted before it; what is computed for them
    int64_t position;      // of the root
    int64_t deepest;       // no row of the round is at a larger position
  };
  // Tokens to the keys and values of the self-attention, and to what its queries are made of.
  struct Entrance {
    const int32_t* tokens;
    void *hidden, *normed, *qkv;
    int64_t rows;
    ProductPath path = ProductPath::kDecode;
  };

  int64_t padded(int64_t rows) const { return padded_rows(device_.backend(), rows); }
  int64_t most_rows() const;  // of a forward
  TreeSetup tree_setup() const;
  Inputs carve_inputs(Carver& carver) const;
  Work carve(Carver& carver) const;
  PrefillWork carve_prefill(Carver& carver) const;
  DraftBufferSizes buffer_sizes() const;
  uint64_t product_check_bytes() const;
  int64_t first_prompt_row() const;  // of those that the window keeps

  void enter(const Entrance& e);
  void attend_target(const DraftRows& rows);
  void finish_layer(const DraftRows& rows);  // from work.hidden and qkv to logits
  void join_early_tokens();
  void play_round(int32_t root, int64_t position, const TreeInputs& to);
  Round upload_round(int32_t root, int64_t position, const TreeInputs& to);
  void embed(const int32_t* tokens, const int32_t* positions, int64_t rows, int64_t pass_row);
  void grow_tree(const Round& round, const TreeRows& to);

  Device& device_;
  const LongSpecConfig& config_;
  const LongSpecWeights& weights_;
  const LongSpecTarget target_;
  const DraftSetup options_;
  const DraftLayerSizes sizes_;
  const DraftCacheShape shape_;
  Stream* compute_ = nullptr;
  const KvCache* target_cache_ = nullptr;
  DraftBuffers buffers_;
  std::unique_ptr<Work> work_;
  std::unique_ptr<PrefillWork> prefill_;
  std::unique_ptr<Inputs> host_;
  std::optional<DraftLayer> layer_;
  std::optional<DraftCache> cache_;
  std::optional<TreeBuilder> builder_;
  Replay replay_{16};
  std::vector<int32_t> stable_tokens_;  // accepted, not yet in the cache
};

}  // namespace headrace
