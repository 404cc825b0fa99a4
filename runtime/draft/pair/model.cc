// --spec-type KIND,ngram-simple: a draft with weights, and look-up in the text beside it. Thread: as in draft_model.h.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/draft/draft_model.h"
#include "runtime/draft/pair/merge.h"

namespace headrace {
namespace {

// Owns both drafts; their trees become one.
class PairDraft final : public Draft {
 public:
  // `head_tree`: the largest tree of the head, and of the pair but for its levels.
  PairDraft(std::unique_ptr<Draft> head, std::unique_ptr<Draft> look_up, const TreeLimits& head_tree)
      : head_(std::move(head)), look_up_(std::move(look_up)), head_tree_(head_tree) {}

  DraftMemory memory() const override {
    const DraftMemory head = head_->memory(), beside = look_up_->memory();
    return {.lasting_bytes = head.lasting_bytes + beside.lasting_bytes,
            .prefill_bytes = head.prefill_bytes + beside.prefill_bytes,
            .pinned_bytes = head.pinned_bytes + beside.pinned_bytes};
  }
  bool reads_last_layer() const override { return head_->reads_last_layer(); }
  // Look-up starts from the prompt's tokens.
  void resume(std::unique_ptr<KeptDraft> kept, int64_t rows) override { head_->resume(std::move(kept), rows); }
  std::unique_ptr<KeptDraft> keep(int32_t next, int64_t position) override { return head_->keep(next, position); }
  void allocate(Stream& compute) override {
    head_->allocate(compute);
    look_up_->allocate(compute);
  }
  void attach(const KvCache& cache) override { head_->attach(cache); }
  std::vector<PromptStates> prompt_states() override { return head_->prompt_states(); }
  void prefill_layer(const LayerInput& input) override { head_->prefill_layer(input); }
  bool finish_prefill(std::span<const int32_t> prompt, Progress* progress,
                      const std::atomic<bool>* interrupt) override {
    return head_->finish_prefill(prompt, progress, interrupt) && look_up_->finish_prefill(prompt, nullptr, interrupt);
  }
  void propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) override {
    look_up(root, position, limits);
    head_->propose(root, position, of_head(limits), &proposed_);
    merge_trees(proposed_, found_, std::min(limits.nodes, head_tree_.nodes), tree);
  }
  // Where nothing is found the tree stays on the device.
  ProposedTree propose_into(int32_t root, int64_t position, const TreeLimits& limits, const TreeInputs& to) override {
    look_up(root, position, limits);
    if (found_.size() > 1) return {};
    return head_->propose_into(root, position, of_head(limits), to);
  }
  void pass_layer(const LayerInput& input) override { head_->pass_layer(input); }
  void observe(const Tree& tree, const Acceptance& acceptance) override {
    looked_up_ = false;
    head_->observe(tree, acceptance);
    look_up_->observe(tree, acceptance);
  }
  void pass_queries(const PassQueries& queries) override { head_->pass_queries(queries); }
  void observe_query(const TargetQuery& query) override { head_->observe_query(query); }
  void rewind(int64_t position) override {
    looked_up_ = false;
    head_->rewind(position);
    look_up_->rewind(position);
  }

 private:
  void look_up(int32_t root, int64_t position, const TreeLimits& limits) {
    if (!looked_up_) look_up_->propose(root, position, limits, &found_);
    looked_up_ = true;
  }
  TreeLimits of_head(const TreeLimits& limits) const {
    return {.nodes = std::min(limits.nodes, head_tree_.nodes), .levels = std::min(limits.levels, head_tree_.levels)};
  }

  const std::unique_ptr<Draft> head_, look_up_;
  const TreeLimits head_tree_;
  Tree proposed_, found_;
  bool looked_up_ = false;  // found_ is of the step
};

class PairModel final : public DraftModel {
 public:
  PairModel(std::unique_ptr<DraftModel> head, std::unique_ptr<DraftModel> look_up)
      : head_(std::move(head)), look_up_(std::move(look_up)) {}

  bool load(Progress* progress, const std::atomic<bool>* interrupt) override {
    return head_->load(progress, interrupt);
  }
  bool loaded() const override { return head_->loaded(); }
  uint64_t staging_bytes() const override { return head_->staging_bytes(); }
  uint64_t weights_bytes() const override { return head_->weights_bytes(); }
  WeightDamage damage() const override { return head_->damage(); }
  SpecType type() const override { return head_->type(); }
  std::string name() const override { return head_->name() + "," + look_up_->name(); }
  TreeLimits tree() const override {
    return {.nodes = head_->tree().nodes, .levels = std::max(head_->tree().levels, look_up_->tree().levels)};
  }
  bool tunes_trees() const override { return head_->tunes_trees(); }
  DraftNeeds needs(const DraftRun& run, const WeightsFingerprint& fingerprint) const override {
    return head_->needs(run, fingerprint);
  }
  std::vector<FileStamp> files() const override { return head_->files(); }
  bool may_be_windowed(const DraftRun& run) const override { return head_->may_be_windowed(run); }
  DraftWindow window(const DraftRun& run) const override { return head_->window(run); }
  std::unique_ptr<Draft> start(const DraftRun& run) override {
    return std::make_unique<PairDraft>(head_->start(run), look_up_->start(run), head_->tree());
  }

 private:
  const std::unique_ptr<DraftModel> head_, look_up_;
};

}  // namespace

std::unique_ptr<DraftModel> pair_with_look_up(std::unique_ptr<DraftModel> head, std::unique_ptr<DraftModel> look_up) {
  return std::make_unique<PairModel>(std::move(head), std::move(look_up));
}

}  // namespace headrace
