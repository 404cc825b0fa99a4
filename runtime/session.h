// One run over one context: the KV cache, the buffers of a step and the order in which they are used (DESIGN section
// 3): prefill once, then verify a tree and commit what was right of it, again and again. Planned and allocated before
// the first token; gives everything back when destroyed. Thread: one at a time, but for `interrupt`. prefill() is in
// prefill.cc, verify(), grow() and commit() are in verify.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/planner.h"
#include "kernels/sample.h"
#include "offload/graph.h"
#include "runtime/accept.h"
#include "runtime/carver.h"
#include "runtime/draft/draft.h"
#include "runtime/kv_cache.h"
#include "runtime/kv_streamer.h"
#include "runtime/model/forward.h"
#include "runtime/partial_kv.h"
#include "runtime/pending_tree.h"
#include "runtime/prefix/run.h"
#include "runtime/progress.h"
#include "runtime/spill_options.h"
#include "runtime/tree.h"

namespace headrace {

// Rows that are drawn at a time, unless more are ranked: a product's group, as large trees and refreshes are several.
constexpr int64_t kDrawnRows = 64;

struct SessionOptions {
  int64_t prompt_tokens = 0;
  int64_t context_tokens = 0;  // the most that the run may come to
  int64_t pass_rows = 1;       // the largest tree, the pending rows of a refresh not counted
  KvMode kv = KvMode::kAuto;
  DType k_type = DType::kBF16, v_type = DType::kBF16;
  SamplingSettings sampling{};
  int ring_slots = 0;
  uint64_t ring_slot_bytes = 0;
  uint64_t host_piece_bytes = 256 * kMiB;  // of the KV cache's host memory that are pinned at a time
  SpillOptions spill{};                    // what host memory cannot hold
  int64_t prefill_group = 0;               // rows of a prefill product; 0: the backend's
  bool graphs = true;               // a step is replayed as a CUDA graph where it can be; false: for tests and benches
  int64_t grow_rows = 0;            // nodes that one call of grow() computes at most; 0: none
  int64_t drawn_rows = kDrawnRows;  // more: for tests that look at the logits of all rows
  PartialOptions partial{};         // no blocks: every step reads the full KV
  PrefixRun* prefix = nullptr;      // the saved rows that the prompt begins with, and what is to be saved; outlives it
  Draft* draft = nullptr;           // shown the target's states, and planned with the rest; outlives the session
};

// Of a prefill product where no option says otherwise: DESIGN section 6, rule 1.
constexpr int64_t kCpuPrefillGroup = 256, kCudaPrefillGroup = 2048;

RowShape row_shape(const ModelConfig& config, DType k_type, DType v_type);

class Session {
 public:
  // Plans, and allocates nothing: throws Error(kDoesNotFit). The weights' memory must be reserved by now; they are read
  // from prefill() on. `compute` is lent by whoever runs one session after another, with what the kernels keep on it;
  // it is idle again when the session has gone.
  Session(Device& device, Stream& compute, const ModelConfig& config, const Weights& weights,
          const SessionOptions& options);
  ~Session();

  // Makes the file of what lives on disk, whose errors come out here, and begins to take the KV cache's host memory,
  // while other work goes on that takes `beside_bytes` of host memory itself; not where the budget has no room for
  // both. prefill() does what has not been begun; errors come out of it. The destructor waits.
  void begin_host_memory(uint64_t beside_bytes);

  // All chunks of the prompt through layer 0, then layer 1, … (DESIGN section 7). Returns the token after the prompt,
  // or nothing if `interrupt` was set on the way, or a saved prefix is damaged(). REQUIRES: prompt_tokens ids, each in
  // the vocabulary.
  std::optional<int32_t> prefill(std::span<const int32_t> ids, Progress* progress, const std::atomic<bool>* interrupt);

  // One target pass over the tree; returns the target's sample after each node, valid until the next call. kPartial:
  // the tree stands behind the pending rows, and sees the partial KV. Else it stands behind the full KV's rows, begins
  // with the pending tokens, if there are any, and judges them again; their rows are forgotten when it is committed.
  std::span<const int32_t> verify(const Tree& tree, StepMode mode = StepMode::kFull);
  // A partial step that computes nodes [first, size) of a tree behind the full KV's rows, whose other nodes earlier
  // calls have computed. What is ranked after the new nodes is valid until the next call. REQUIRES: nothing is pending;
  // grow_rows of them at most.
  Ranked grow(const Tree& tree, int64_t first);
  // Where a draft may put its tree for a step of this mode, which nothing is pending before but in a partial one…
  TreeInputs tree_inputs(StepMode mode) const;
  // …and verify() of the tree that it has put there, accepted on the device. One wait, for one copy of all that came of
  // it: the tree as the draft had it, and which of it is right.
  std::span<const int32_t> verify(const ProposedTree& proposed, StepMode mode, Tree* tree, Acceptance* acceptance);
  // Appends the accepted path of the tree just verified to the KV cache; after a partial step, to the pending rows.
  void commit(const Acceptance& acceptance);

  int64_t rows() const { return cache_ ? cache_->rows() : 0; }                     // of the full KV
  int64_t computed_rows() const { return options_.prompt_tokens - saved_rows(); }  // of the prompt
  int64_t pending_rows() const { return cache_ ? cache_->pending_rows() : 0; }
  // From how many tokens on there may be partial steps; 0: never in this run.
  int64_t partial_from() const { return partial_on() ? options_.partial.shape.least_context() : 0; }
  bool partial_ready() const { return partial_ && partial_->initialised(); }
  const MemoryPlan& plan() const { return plan_; }
  // What taking the KV cache's host memory took, and how long prefill has waited for it.
  double host_memory_ms() const { return cache_ ? cache_->host_memory().ms() : 0; }
  SpillFile* disk() const { return cache_ ? cache_->disk() : nullptr; }  // from prefill() on; null: nothing is on one
  SpillStats spill_stats() const { return disk() ? disk()->stats() : SpillStats(); }
  double host_wait_ms() const { return cache_ ? cache_->host_memory().waited_ms() : 0; }
  // The logits of the last pass (after prefill: one row), for tests and benches. [rows, vocab]
  std::vector<float> logits(int64_t rows);
  int64_t replayed_steps() const { return replay_.launches() + growth_replay_.launches(); }
  int64_t steps_on_device() const { return steps_on_device_; }      // whose tree the host had no hand in
  int64_t commits_on_device() const { return commits_on_device_; }  // nor in what was accepted of it

 private:
  // What a step reads from the host, in one block that is copied once. Each [pass_rows] but where said.
  struct StepInputs {
    int32_t *tokens, *positions, *draw_positions, *slots, *source;
    int32_t *committed, *first_row;  // [1]
    int32_t* path;                   // [pass_rows, path_stride]; last, as a step uploads what it uses of it
    static StepInputs carve(Carver& carver, int64_t pass_rows, int64_t path_stride);
  };
  // What of a step goes to the host, in one copy; the tokens of its inputs stand behind it.
  struct StepResult {
    TreeAcceptance* acceptance;         // [1]
    int32_t *count, *parents, *depths;  // [1], [kMaxTreeNodes] each, of a draft's tree
    float* scores;                      // [kMaxTreeNodes]
    int32_t* samples;                   // [pass_rows]
    static StepResult carve(Carver& carver, int64_t pass_rows);
    static uint64_t bytes(int64_t pass_rows);
  };
  // Everything on the device that outlives prefill, beside the KV cache.
  struct StepWork {
    StepResult result;
    StepInputs inputs;
    uint64_t path_offset;  // in the inputs
    float *inv_freq, *cos_sin;
    void* hidden;  // [pass_rows, hidden]
    LayerWork layer;
    AttentionState state, scratch;
    int64_t scratch_rows;  // that `scratch` has room for: a launch's segments times the pass's rows
    float* logits;         // [logit_rows(), vocab]
    void* sample_workspace;
    // Log-probabilities [grow_rows, kRankedTokens] in f32, then as many tokens: one copy.
    std::byte* ranked = nullptr;
    void* rank_workspace = nullptr;
  };
  struct PrefillWork;

  void take_host_memory();
  void make_spill_file();
  uint64_t disk_free_bytes() const;
  void allocate();
  void allocate_passes();  // once prefill's memory has gone
  StepWork carve_step(Carver& carver, Carver& later) const;
  PrefillWork carve_prefill(Carver& carver) const;
  MemoryPlan make_session_plan() const;
  void plan_work(PlanInput* input) const;
  uint64_t pinned_work_bytes() const;
  uint64_t result_bytes() const;
  uint64_t pointer_bytes() const;  // of a table of all layers' K and V
  int64_t padded(int64_t rows) const;
  bool partial_on() const;    // the run is long enough for its budget
  int64_t pass_rows() const;  // the largest pass
  int64_t drawn_rows() const;
  int64_t logit_rows() const;
  int64_t path_stride() const;
  uint64_t ranked_bytes() const;
  int64_t prefill_group() const;
  int64_t saved_rows() const { return options_.prefix != nullptr ? options_.prefix->rows() : 0; }
  Pass make_pass(const LayerWork& work, const int32_t* positions, int64_t rows, ProductPath path);
  void upload_rope_table();

  void upload_prompt(std::span<const int32_t> ids, PrefillWork* work, const PinnedBuffer& staging);
  void embed_prompt(const PrefillWork& work);
  bool prefill_layers(const PrefillWork& work, Progress* progress, const std::atomic<bool>* interrupt);
  bool begin_prefix();
  bool prefill_draft(std::span<const int32_t> ids, Progress* progress, const std::atomic<bool>* interrupt);
  void prefill_group_rows(const PrefillWork& work, int64_t layer, int64_t first, int64_t rows, const Event& layer_left);

  void start_pass(StepMode mode, int64_t nodes);
  void play_pass();
  void accept_proposed();
  void bring_result(int64_t nodes, Tree* tree, Acceptance* acceptance);
  bool accepted_on_device(const Acceptance& acceptance) const;
  void upload_step(const Tree& tree);
  void upload_growth(const Tree& tree, int64_t first);
  void set_input(int64_t row, int32_t token, int64_t position);
  uint64_t upload_bytes(int64_t rows) const;
  void rank(int64_t rows);
  int64_t growth_rows(int64_t rows, int64_t first) const;
  int64_t prefix_segments() const;
  void run_pass(const Pass& pass);
  void attend(const Pass& pass, int64_t layer);
  void attend_full(const PrefixAttentionParams& params, const Pass& pass, int64_t layer);
  void attend_partial(const PrefixAttentionParams& params, int64_t layer);
  void attend_tail(const Pass& pass, int64_t layer);
  ScoringQueries scoring_queries(const LayerWork& work, int64_t rows, int64_t wanted) const;
  void draw(const Pass& pass);  // logits and samples of `pass.rows` rows
  void bring_samples(int64_t rows);
  void finish_step();

  Device& device_;
  Stream& compute_;
  const ModelConfig& config_;
  const Weights& weights_;
  const SessionOptions options_;
  const RowShape shape_;
  MemoryPlan plan_;
  PinnedLater host_memory_;  // until the cache has them
  std::unique_ptr<SpillFile> spill_file_;
  DeviceBuffer step_memory_, pass_memory_;
  PinnedBuffer host_inputs_, host_results_, host_ranked_;
  StepInputs host_;
  StepResult host_result_;
  StepWork step_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<KvStreamer> streamer_;      // none where all is resident
  std::unique_ptr<PartialKv> partial_;        // none where the run never outgrows its budget
  StepMode mode_ = StepMode::kFull;           // of the step
  int64_t step_rows_ = 0, judged_again_ = 0;  // of the pass; of them, pending tokens
  int64_t deepest_position_ = 0;
  bool on_device_ = false;  // the step's tree came from the device
  int64_t steps_on_device_ = 0, commits_on_device_ = 0;
  bool grows_ = false;  // the pass's own K and V go to the pass rows that the inputs say; else from the first on
  Replay replay_, growth_replay_;
};

}  // namespace headrace
