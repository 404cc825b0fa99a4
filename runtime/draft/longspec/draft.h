// The LongSpec draft (LongSpec section 3.1): one layer whose self-attention sees a window and whose cross-attention
// sees the target's last layer, so its memory is independent of the context. The keys and values of its self-attention
// depend only on a row's token and position: rows of the prompt and of accepted tokens need no attention before they
// enter the cache.
//     x1 = e + SelfAttn(RMSNorm(e)),  x2 = x1 + CrossAttn(RMSNorm(x1)),  x3 = x2 + MLP(RMSNorm(x2)),  logits = head(x3)
// Reads weights that the engine owns and the session's KV cache.
#pragma once

#include <optional>

#include "runtime/draft/draft_model.h"
#include "runtime/draft/layer.h"
#include "runtime/draft/layer_draft.h"
#include "runtime/draft/longspec/weights.h"

namespace headrace {

class LongSpecDraft final : public LayerDraft {
 public:
  // All must outlive the draft. The target, whose RoPE, embedding and head it uses, may be loaded later, but before
  // prefill.
  LongSpecDraft(Device& device, const LongSpecConfig& config, const LongSpecWeights& weights, const DraftTarget& target,
                const DraftSetup& options);

  bool reads_last_layer() const override { return true; }
  void attach(const KvCache& target) override { target_cache_ = &target; }
  bool finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) override;
  void rewind(int64_t position) override;

 private:
  struct Work {
    void* hidden;  // [rows, hidden]
    DraftLayerWork layer;
  };
  struct PrefillWork {
    void *hidden, *normed, *qkv;  // of one group of the prompt's rows in the window
  };
  // Computes the keys and values of the self-attention from tokens, and the input of its queries.
  struct Entrance {
    const int32_t* tokens;
    void *hidden, *normed, *qkv;
    int64_t rows;
    ProductPath path = ProductPath::kDecode;
  };

  int64_t queries() const { return most_rows(stable_rows(options_.tree)); }               // most of a forward
  int64_t first_prompt_row() const { return shape_.first_kept(options_.prompt_tokens); }  // in the window
  // More inputs of a round: for each query the last position of the target's cache; the rows to commit.
  int32_t* before(const Inputs& in) const { return in.more; }
  int32_t* source(const Inputs& in) const { return in.more + queries(); }

  void carve(Buffers* buffers) override;
  uint64_t check_bytes() const override;
  void begin() override;
  Round catch_up(int32_t root, int64_t position) override;
  const float* forward_root(const Round& round) override;
  const float* forward_level(const Round& round, int64_t level, const DraftRows& rows) override;

  void enter(const Entrance& e);
  void attend_target(const DraftRows& rows);
  const float* finish_layer(const DraftRows& rows);  // from work_.hidden and qkv to logits
  void embed(const int32_t* tokens, const int32_t* positions, int64_t rows, int64_t pass_row);
  void join_early_tokens();

  const LongSpecConfig& config_;
  const LongSpecWeights& weights_;
  const DraftTarget target_;
  const DraftLayerSizes sizes_;
  const KvCache* target_cache_ = nullptr;
  Work work_{};
  PrefillWork prefill_{};
  std::optional<DraftLayer> layer_;
};

}  // namespace headrace
