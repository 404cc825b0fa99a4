// The common part of the opened drafts that rank a vocabulary. Thread: as in draft_model.h.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "runtime/draft/buffers.h"

namespace headrace {

template <typename Checkpoint, typename DraftWeights>
class LayerDraftModel : public DraftModel {
 public:
  bool load(Progress* progress, const std::atomic<bool>* interrupt) override {
    return weights_.loaded() || weights_.load(*checkpoint_, device_, progress, interrupt);
  }
  bool loaded() const override { return weights_.loaded(); }
  uint64_t weights_bytes() const override { return weights_.bytes(); }
  WeightDamage damage() const override { return weights_.damage(); }
  uint64_t staging_bytes() const override { return weights_.staging_bytes(); }
  SpecType type() const override { return type_; }
  std::vector<FileStamp> files() const override { return checkpoint_->files(); }
  TreeLimits tree() const override { return {.nodes = tree_.nodes, .levels = tree_.deepest()}; }
  bool tunes_trees() const override { return tunes_trees_; }

 protected:
  LayerDraftModel(const DraftOptions& options, const TreeShape& tree, Device& device,
                  std::unique_ptr<Checkpoint> checkpoint, const WeightStoreOptions& weights)
      : device_(device),
        type_(options.type),
        tree_(tree),
        tunes_trees_(!options.tree),
        checkpoint_(std::move(checkpoint)),
        weights_(DraftWeights::reserve(*checkpoint_, device, weights)) {}

  DraftSetup setup_of(const DraftRun& run, const ModelConfig& target) const {
    const DraftWindow seen = window(run);
    const AttentionSpec& attention = target.layers.back().attention();
    return {.run = run,
            .tree = tree_,
            .window = seen.rows,
            .retrieval = {.shape = seen.retrieval,
                          .context_rows = run.context_tokens,
                          .pass_rows = std::max(run.pass_nodes, tree_.nodes + run.most_pending),
                          .heads = attention.heads,
                          .kv_heads = attention.kv_heads,
                          .head_dim = attention.head_dim,
                          .query_bytes = static_cast<uint64_t>(attention.qkv_width()) * sizeof(float)}};
  }

  Device& device_;
  const SpecType type_;
  const TreeShape tree_;
  const bool tunes_trees_;
  const std::unique_ptr<Checkpoint> checkpoint_;
  DraftWeights weights_;
};

}  // namespace headrace
