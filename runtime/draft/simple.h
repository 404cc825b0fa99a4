// A small language model as a draft (SpecExtend section 3; LongSpec's and SpecExtend's code call it the 68M): it reads
// the same tokens as the target and nothing else of it, so that any Llama-shaped model with the same vocabulary will
// do.
//
// With a window it keeps StreamingLLM's cache (arXiv 2309.17453, section 3.2): the first few tokens and the last ones,
// at positions counted in the cache, without which a model collapses beyond the length it was trained for. RoPE knows
// distances alone, so that rows are kept at running positions and only the first few are turned along as the window
// moves on. What of the prompt lies between them and the window is never read: its tokens have no positions here.
//
// A round forwards the tokens that were accepted since the last one with the new root, which join the cache, then the
// tree's levels. It stays on the device, and the tree is cut there, for the target's pass, or for one small copy that
// brings it to the host. Owns the run's buffers; reads weights that the engine owns. Thread: as draft.h says.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "offload/graph.h"
#include "runtime/carver.h"
#include "runtime/draft/draft.h"
#include "runtime/draft/draft_buffers.h"
#include "runtime/draft/draft_cache.h"
#include "runtime/draft/tree_builder.h"
#include "runtime/model/forward.h"
#include "runtime/model/weights.h"

namespace headrace {

class SimpleDraft final : public Draft {
 public:
  // All must outlive the draft. `weights` may be loaded later, but before prefill ends.
  SimpleDraft(Device& device, const ModelConfig& config, const Weights& weights, const DraftSetup& options);
  ~SimpleDraft() override;

  DraftMemory memory() const override;
  void allocate(Stream& compute) override;
  void prefill_layer(const LayerInput&) override {}
  bool finish_prefill(std::span<const int32_t> prompt, Progress* progress, const std::atomic<bool>* interrupt) override;
  void propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) override;
  ProposedTree propose_into(int32_t root, int64_t position, const TreeLimits& limits, const TreeInputs& to) override;
  void pass_layer(const LayerInput&) override {}
  void observe(const Tree& tree, const Acceptance& acceptance) override;
  void rewind(int64_t position) override;

 private:
  struct Inputs;
  struct Work;
  int64_t padded(int64_t rows) const { return padded_rows(device_.backend(), rows); }
  int64_t chain_rows() const;  // that one pass may add to the cache
  uint64_t type_bytes() const;
  uint64_t qkv_row_bytes() const;
  DraftCacheShape cache_shape() const;
  TreeSetup tree_setup() const;
  Inputs carve_inputs(Carver& carver) const;
  Work carve(Carver& carver) const;
  DraftBufferSizes buffer_sizes() const;
  void upload_constants();

  Pass make_pass(const int32_t* positions, int64_t rows) const;
  void forward(const DraftRows& rows);
  void predict(int64_t first, int64_t count);
  void upload_chain(std::span<const int32_t> tokens, int64_t rows);
  int64_t extend(std::span<const int32_t> tokens);
  std::span<const int32_t> last_chunk();
  void play_round(int32_t root, int64_t position, const TreeInputs& to);
  void grow_tree(int64_t chain, const TreeRows& to);
  void remember_sinks(int64_t layer, int64_t position, int64_t rows);
  void place_sinks();

  Device& device_;
  const ModelConfig& config_;
  const Weights& weights_;
  const DraftSetup options_;
  const int64_t unread_;  // tokens of the prompt between the sinks and the window
  const DraftCacheShape shape_;
  Stream* compute_ = nullptr;
  DraftBuffers buffers_;
  std::unique_ptr<Work> work_;
  std::unique_ptr<Inputs> host_;
  std::optional<DraftCache> cache_;
  std::optional<TreeBuilder> builder_;
  Replay replay_{16};
  std::vector<KvSegment> prefix_;  // of one layer, reused
  std::vector<int32_t> stable_;    // accepted tokens that are not yet in the cache
  int64_t sinks_before_ = 0;       // the row that the sinks were last placed before; 0: nowhere yet
};

}  // namespace headrace
