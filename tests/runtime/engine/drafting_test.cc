// Which trees a step's measured times may cut: those of a draft that finds them, and no others.
#include "runtime/engine/drafting.h"

#include <gtest/gtest.h>

#include <memory>

#include "offload/device/device.h"
#include "offload/host/clock.h"

namespace headrace {
namespace {

constexpr int64_t kFound = 12;  // nodes of each tree

// Proposes a wide tree of tokens that never come.
class WrongDraft final : public Draft {
 public:
  DraftMemory memory() const override { return {}; }
  void allocate(Stream&) override {}
  void prefill_layer(const LayerInput&) override {}
  bool finish_prefill(std::span<const int32_t>, Progress*, const std::atomic<bool>*) override { return true; }
  void propose(int32_t root, int64_t, const TreeLimits&, Tree* tree) override {
    tree->reset(root);
    while (tree->size() < kFound) tree->add(static_cast<int32_t>(100 + tree->size()), 0);
    tree->scores.assign(tree->tokens.size(), -3.0f);
  }
  void pass_layer(const LayerInput&) override {}
  void observe(const Tree&, const Acceptance&) override {}
  void rewind(int64_t) override {}
};

class WrongModel final : public DraftModel {
 public:
  explicit WrongModel(bool finds) : finds_(finds) {}
  bool load(Progress*, const std::atomic<bool>*) override { return true; }
  bool loaded() const override { return true; }
  uint64_t weights_bytes() const override { return 0; }
  SpecType type() const override { return finds_ ? SpecType::kNgram : SpecType::kMtp; }
  TreeLimits tree() const override { return {.nodes = kFound, .levels = 1}; }
  bool tunes_trees() const override { return false; }
  bool finds_trees() const override { return finds_; }
  std::unique_ptr<Draft> start(const DraftRun&) override { return std::make_unique<WrongDraft>(); }

 private:
  const bool finds_;
};

// Nodes of the last of 100 steps, in which each node takes a tenth of a millisecond.
int64_t nodes_at_the_end(bool finds, const DraftingOptions& options, int64_t pending = 0) {
  const std::unique_ptr<Device> device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  const std::unique_ptr<Stream> compute = device->make_stream("compute", StreamRole::kCompute);
  WrongModel model(finds);
  const std::unique_ptr<Draft> draft = model.start({});
  Drafting drafting(&model, draft.get(), *compute, options);
  Tree tree;
  for (int i = 0; i < 100; ++i) {
    tree.reset(7);
    drafting.begin(StepMode::kFull, pending, pending);
    drafting.propose(7, 1000 + i, &tree);
    const HostClock::time_point start = HostClock::now();
    while (ms_since(start) < 0.1 * static_cast<double>(tree.size())) {
    }
    drafting.observe(tree, {.nodes = {0}, .next = 8}, 1000 + i, {.committed = 1});
  }
  return tree.size();
}

TEST(Drafting, StepsVerifyWhatPaysOfAFoundTree) {
  EXPECT_EQ(nodes_at_the_end(true, {}), 1);
  EXPECT_EQ(nodes_at_the_end(true, {.verify = VerifyMode::kLossless}), 1);
}

TEST(Drafting, ATreeWithAShapeStaysWhole) { EXPECT_EQ(nodes_at_the_end(false, {}), kFound); }

// It decides the text there.
TEST(Drafting, AFoundTreeStaysWholeInAnApproximateRun) {
  EXPECT_EQ(nodes_at_the_end(true, {.verify = VerifyMode::kApproximate}), kFound);
}

TEST(Drafting, AFoundTreeStaysWholeBehindPendingTokens) {
  EXPECT_EQ(nodes_at_the_end(true, {.verify = VerifyMode::kLossless}, 5), kFound);
}

}  // namespace
}  // namespace headrace
