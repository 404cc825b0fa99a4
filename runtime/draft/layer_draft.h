// The common part of the drafts that rank a vocabulary (EAGLE-3, MTP, LongSpec, small models): memory, the steps of a
// layer (runtime/layers) over the draft's cache, and the round that proposes a tree. A round first adds the accepted
// tokens to the draft's cache, then grows the tree level by level. The tree stays on the device for the target's pass,
// or one small copy brings it to the host. Derived classes compute the rows. Owns the run's buffers, cache and tree
// builder. Thread: as in draft.h.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "kernels/product/op.h"
#include "offload/device/graph.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/draft/buffers.h"
#include "runtime/draft/cache.h"
#include "runtime/draft/draft.h"
#include "runtime/draft/retrieval.h"
#include "runtime/draft/tree_builder.h"
#include "runtime/layers/forward.h"

namespace headrace {

class LayerDraft : public Draft {
 public:
  DraftMemory memory() const final;
  void allocate(Stream& compute) final;
  void prefill_layer(const LayerInput&) override {}
  void propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) final;
  ProposedTree propose_into(int32_t root, int64_t position, const TreeLimits& limits, const TreeInputs& to) final;
  std::optional<TokenRank> rank(int32_t token) final;
  void pass_layer(const LayerInput&) override {}
  // With chosen chunks (DraftSetup::retrieval). LongSpec, which has none, reads the last layer too.
  bool reads_last_layer() const override { return chooses(); }
  void attach(const KvCache& target) override;
  void pass_queries(const PassQueries& queries) final;
  void observe_query(const TargetQuery& query) final;
  void observe(const Tree& tree, const Acceptance& acceptance) override;

 protected:
  // Inputs of a round from the host.
  struct Inputs {
    int32_t *tokens, *positions;            // [rows]
    int32_t *committed_before, *committed;  // [1]: the cache's rows before and after the accepted ones
    int32_t *root, *root_position;          // [1], of the target
    int32_t* slot_shift;                    // [1]
    int32_t* more;                          // for the derived class
    uint64_t changing_bytes;                // of all these, in one block for one copy
    int32_t *order, *path;                  // [rows], [rows, rows]: of a chain of any length; constant
  };
  // The run's buffers while they are divided; null bases while the memory is planned.
  struct Buffers {
    BumpAllocator work, prefill;   // device memory
    BumpAllocator inputs, prompt;  // pinned
  };
  struct Round {
    int64_t row = 0;      // the accepted token's row that predicts the root's children
    int64_t key = 0;      // for a Replay::Key: what the tree's calls depend on beside cache and shape
    int64_t deepest = 0;  // the largest position of the round
  };

  // What a layer computes in, and the logits.
  struct LayerBuffers {
    RopeTables rope;
    LayerWork work;
    float* logits = nullptr;  // [logit rows, decoder.logits]
    AttentionState state{}, scratch{};
  };

  // `shape` needs no rows: they are the decoder's. Tokens that the draft lacks, at `vocab` or above, are read as 0.
  LayerDraft(Device& device, const DraftSetup& options, DraftDecoder decoder, const DraftCacheShape& shape,
             const TreeSetup& tree, int64_t vocab);
  void plan();  // called at the end of each derived constructor

  int64_t padded(int64_t rows) const { return padded_rows(device_.backend(), rows); }
  int64_t most_rows(int64_t chain) const { return std::max(chain, options_.tree.widest()); }  // of a forward
  void carve_inputs(int64_t rows, int64_t more, Buffers* buffers);
  void carve_prompt(int64_t rows, Buffers* buffers);
  // For `rows` rows, padded, of which `queries` attend.
  void carve_layers(int64_t rows, int64_t queries, int64_t logit_rows, Buffers* buffers);

  virtual void carve(Buffers* buffers) = 0;  // inputs first
  // Adds accepted tokens to the cache, so that the root's children can be predicted.
  virtual Round catch_up(int32_t root, int64_t position) = 0;
  // Both return logits: of the row that catch_up() computed for the root, and of a level's rows.
  virtual const float* forward_root(const Round& round) = 0;
  virtual const float* forward_level(const Round& round, int64_t level, const DraftRows& rows) = 0;

  Pass make_pass(const int32_t* positions, int64_t rows) const;
  Pass prompt_pass(const LayerWork& work, const int32_t* positions, int64_t rows) const;
  // Rows of pass.work.qkv: K and V to the cache's ring, from `position` on.
  void rotate_into_ring(const Pass& pass, const LayerWeights& weights, int64_t position);
  // pass.work.qkv -> pass.work.attention: a layer's attention to the cache.
  void attend(const Pass& pass, int64_t layer, const LayerWeights& weights, const DraftRows& rows);
  // Folds `segments`, whole ones, into what attend_tail() left.
  void fold_prefix(const PrefixAttentionParams& prefix, std::span<const KvSegment> segments, void* out);

  // Tokens after the cache's rows; the last one is repeated up to `rows`.
  void upload_chain(std::span<const int32_t> tokens, int64_t rows);
  void upload_inputs(int64_t count);  // for `count` new rows of the cache
  void forget_stable(int64_t count);  // the first `count` are in the cache; waits
  void upload_prompt(std::span<const int32_t> tokens, int64_t sinks, int64_t first, int64_t kept);
  void end_prefill(int64_t rows, bool sinks_written);  // waits
  bool chooses() const { return options_.retrieval.shape.chunks > 0 && shape_.windowed(); }
  // Whenever rows have joined the cache or left it: places what comes before the window, if that has changed.
  void place_rows_before_window();
  // Of a Replay::Key: what comes before the tail of the cache's rows.
  int64_t prefix_key() const { return (shape_.first_kept(cache_->rows()) << 20) + cache_->placed_rows(); }

  Device& device_;
  const DraftSetup options_;
  const DraftDecoder decoder_;
  const DraftCacheShape shape_;
  LayerBuffers layers_;
  Stream* compute_ = nullptr;
  Inputs inputs_{}, host_{};
  PromptRows prompt_{};  // of finish_prefill()
  const KvCache* target_cache_ = nullptr;
  std::optional<DraftCache> cache_;
  std::optional<Retrieval> retrieval_;    // if the draft chooses()
  std::optional<DraftCache> kept_cache_;  // of an earlier run, until allocate() takes it
  int64_t resumed_rows_ = 0;              // of it, that are this prompt's
  std::optional<TreeBuilder> builder_;
  Replay replay_{16};
  std::vector<int32_t> stable_tokens_;  // accepted, not yet in the cache

 private:
  uint64_t product_bytes() const;  // beside the operands of the draft's products
  void play_round(int32_t root, int64_t position, const TreeInputs& to);
  void grow_tree(const Round& round, const TreeRows& to);

  const TreeSetup tree_setup_;
  const int64_t vocab_;
  std::vector<KvSegment> segments_;     // reused
  int64_t chain_rows_ = 0;              // of inputs_
  const float* root_logits_ = nullptr;  // of the last tree, until a level below the root's children is ranked
  struct {
    uint64_t work, prefill, inputs, prompt;
  } bytes_{};
  DeviceBuffer work_buffer_, prefill_buffer_;
  PinnedBuffer inputs_buffer_, prompt_buffer_;
  PromptRows host_prompt_{};
};

}  // namespace headrace
