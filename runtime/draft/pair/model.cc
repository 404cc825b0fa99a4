#include "runtime/draft/pair/model.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/draft/pair/draft.h"

namespace headrace {
namespace {

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
  std::vector<std::string> damage() const override { return head_->damage(); }
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
