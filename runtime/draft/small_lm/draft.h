// A small language model as a draft (SpecExtend section 3; the code of LongSpec and SpecExtend calls it the 68M): it
// reads the target's tokens and nothing else, so any Llama-shaped model with the same vocabulary works.
//
// With a window it keeps StreamingLLM's cache (arXiv 2309.17453, section 3.2): the first few tokens and the last ones,
// at positions counted within the cache; without that a model degrades beyond its trained length. RoPE depends only on
// distances, so rows stay at running positions and only the first few are rotated along as the window moves. The
// prompt's tokens between them and the window are never read and have no positions here; with chosen chunks all are
// read, each with a window of its own.
//
// A round forwards the tokens accepted since the last one and the new root, which join the cache, then the tree's
// levels. Reads weights that the engine owns.
#pragma once

#include "runtime/draft/layer_draft.h"
#include "runtime/model/weights.h"

namespace headrace {

class SimpleDraft final : public LayerDraft {
 public:
  // All must outlive the draft. `weights` may be loaded later, but before prefill ends.
  SimpleDraft(Device& device, const ModelConfig& config, const Weights& weights, const DraftSetup& options);

  bool finish_prefill(std::span<const int32_t> prompt, Progress* progress, const std::atomic<bool>* interrupt) override;
  void rewind(int64_t position) override;

 private:
  int64_t chain_rows() const;  // most that one pass adds to the cache
  void carve(Buffers* buffers) override;
  Round catch_up(int32_t root, int64_t position) override;
  const float* forward_root(const Round& round) override { return predict(round.row, 1); }
  const float* forward_level(const Round& round, int64_t level, const DraftRows& rows) override;

  void forward(const DraftRows& rows);
  const float* predict(int64_t first, int64_t count);
  int64_t extend(std::span<const int32_t> tokens);

  const ModelConfig& config_;
  const Weights& weights_;
  const int64_t unread_;     // tokens of the prompt between the sinks and the window
  float* hidden_ = nullptr;  // [rows, hidden]
};

}  // namespace headrace
