// The common part of drafts of one layer that read the target's states (EAGLE-3, MTP). A row joins the *feature* of
// token i, which is made of the target's states there, with the embedding of token i + 1, and predicts token i + 2; its
// position is i. While drafting, the layer's own output replaces the feature. Rows of accepted tokens are computed from
// true features only: after every verify pass they replace the guessed ones. With a window the KV cache is independent
// of the context. Derived classes make features and compute the layer. runtime/draft/state_prefill.cc has prefill.
// Thread: as in draft.h.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "runtime/draft/layer_draft.h"

namespace headrace {

class StateDraft : public LayerDraft {
 public:
  std::vector<PromptStates> prompt_states() final;
  void prefill_layer(const LayerInput& input) override;
  bool finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) final;
  void pass_layer(const LayerInput& input) final;
  void observe(const Tree& tree, const Acceptance& acceptance) final;
  void rewind(int64_t position) final;
  void resume(std::unique_ptr<KeptDraft> kept, int64_t rows) final;
  std::unique_ptr<KeptDraft> keep(int32_t next, int64_t position) final;

 protected:
  struct Joined {
    void *token, *joined;  // [rows, hidden], [rows, 2 hidden]
  };
  struct Head {
    const void* norm;  // of work_.output; null: it is normalised
    const Weight& weight;
  };

  // `layer` must outlive the draft. Of `tree`, position_offset and first_row are set here.
  StateDraft(Device& device, const DraftSetup& options, DraftDecoder decoder, const LayerWeights& layer, TreeSetup tree,
             int64_t vocab);

  // Whether it takes something of the states at the input of `layer`.
  virtual bool reads(int64_t layer) const = 0;
  // Elements a row of the room that project() needs; 0: none.
  virtual int64_t pass_room() const { return 0; }
  virtual int64_t prompt_room() const { return 0; }
  // What it takes of a layer's states: into the features of the pass's rows, which are the input's from `first_row` on.
  virtual void project(const Pass& pass, const LayerInput& input, int64_t first_row, void* features, void* room) = 0;
  // Tokens and features -> pass.work.qkv; `to` is room, and remains as it is left until finish_layer().
  virtual void join(const Pass& pass, const int32_t* tokens, const void* features, const Joined& to) = 0;
  // The second half: pass.work.attention, work_.feature and work_.joined -> work_.output, the next level's features.
  virtual void finish_layer(const Pass& pass) = 0;
  virtual Head head() const = 0;
  // Whether the features of a prompt are kept from prefill_layer() to finish_prefill(), which else asks for them.
  virtual bool keeps_prompt_features() const { return true; }
  // Those of rows [first, first + rows), at most a group of them or the sinks; valid until the next call.
  virtual const void* prompt_features(int64_t first, int64_t rows);

  struct Work {
    void* pass_features;  // [tree, hidden]: of the nodes of the last verify
    void* room;           // [tree, pass_room()]
    void* feature;        // [rows, hidden]: the input of a forward, with its tokens
    void* output;         // [rows, hidden]: the feature for the next level
    Joined joined;
  };
  struct PrefillWork {
    void *sink_features, *features;  // [kDraftSinkRows, hidden], [kept rows, hidden]
    void* room;                      // [group, prompt_room()]
    Joined joined;                   // of one group
    LayerWork layer;                 // only qkv
  };
  void carve(Buffers* buffers) override;
  int64_t prompt_group() const;  // rows of a prompt's product, padded
  uint64_t bytes(int64_t elements) const { return static_cast<uint64_t>(elements) * dtype_bytes(decoder_.type); }

  Work work_{};
  PrefillWork prefill_{};

 private:
  int64_t pass_nodes() const {
    return std::max(options_.run.pass_nodes, options_.tree.nodes + options_.run.most_pending);
  }
  void carve_prefill(Buffers* buffers);
  Round catch_up(int32_t root, int64_t position) final;
  const float* forward_root(const Round&) final { return layers_.logits; }  // computed by catch_up()
  const float* forward_level(const Round& round, int64_t level, const DraftRows& rows) final;

  int64_t first_prompt_row() const;   // the first that the cache keeps
  int64_t first_feature_row() const;  // the first whose features are kept: no later
  int64_t sink_features() const;      // rows before them
  int64_t most_sink_features() const;
  void project_prompt(const LayerInput& input, const PromptStates& to);

  void forward(const DraftRows& rows);
  void predict(int64_t first, int64_t count);
  void gather(const void* from, int64_t from_rows, const int32_t* rows, int64_t count);

  const LayerWeights& layer_;
  std::vector<int32_t> stable_features_;  // parallel to stable_tokens_
  bool prefilled_ = false;
};

}  // namespace headrace
