// The saved prefixes of one run: what it reads and what it saves; the engine makes it, Executor::prefill uses it. Rows
// equal those of a fresh run bit for bit, so only rows are kept that any longer prompt would compute in the same way
// (docs/design.md, section 6, rule 1): on the CPU every row of the prompt, since its bits depend only on the tokens up
// to it, and so do they on a GPU if prefill is in 8 bits; otherwise whole groups of a prefill product are kept there,
// since later rows run in smaller groups whose sizes depend on the prompt's length. The last prompt token is always
// computed: its state gives the first answer token.
//
// A draft that makes its rows from the target's states (EAGLE-3, MTP) has separate blocks, beside the rows, for the
// rows in its window; where they are missing or belong to another draft, the prompt is computed from there on. Drafts
// that use only tokens need none. Acceptance equals that of a fresh run, and so does the text of an approximate run,
// which depends on it.
//
// Rows of a model with recurrent states or windows are of use up to a position alone whose states are saved: a prefix
// ends at one of setup.states_at of this prompt or of an earlier one.
//
// Owns the open files, the loader and the saver. Thread: one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "offload/device/device.h"
#include "runtime/base/progress.h"
#include "runtime/draft/draft.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/kv/state_snapshots.h"
#include "runtime/prefix/loader.h"
#include "runtime/prefix/saver.h"
#include "runtime/prefix/store.h"

namespace headrace {

// Shorter prefixes are neither saved nor read.
constexpr int64_t kMinSavedRows = 64;

// The rows that the same run would have with the other --prefill-type, to explain a miss.
struct OtherPrefill {
  PrefixKey identity{};
  const char* type = "";  // "int8", "bf16"
};

struct PrefixRunSetup {
  RowShape shape;
  PrefixKey identity{};  // rows_cache_key()
  OtherPrefill other{};
  std::string model;                 // the model's name, for people
  int64_t unit = 1;                  // rows are kept in multiples of this
  int64_t computed = 1;              // last rows of the prompt that are computed even if saved
  DraftNeeds draft{};                // of the run's draft
  SnapshotShape states{};            // no layers: the model needs none
  std::vector<int64_t> states_at{};  // the positions whose states may be saved (snapshot_positions())
  std::span<const int32_t> prompt;
};

// Statistics for a report.
struct PrefixUse {
  bool asked = false;
  int64_t rows = 0;                          // rows of the prompt that were not computed
  int64_t saved_rows = 0;                    // rows of the prompt that are saved now
  int64_t restarts = 0;                      // attempts ended by a damaged block; their reads count
  uint64_t read_bytes = 0, saved_bytes = 0;  // from disk, and to disk
  double save_wait_ms = 0;                   // wait after the last token
  std::vector<std::string> notes;            // messages for the user, one line each
};

class PrefixRun {
 public:
  // Finds the longest saved beginning. `store` must outlive the run; prompt and shape are copied.
  PrefixRun(PrefixStore& store, const PrefixRunSetup& setup);
  ~PrefixRun();

  int64_t rows() const { return match_.rows; }   // not computed
  uint64_t pinned_bytes(Backend backend) const;  // host memory of the run
  const std::vector<std::string>& notes() const { return use_.notes; }
  std::vector<int64_t> states_to_save() const;  // the positions whose states it saves

  // ---- Executor::prefill, in this order ----
  // Evicts now to make room for what will be saved: the run fits its budgets.
  void begin(Device& device);
  // Reads the draft's rows into its buffers. False, as for restore_layer(): they are damaged.
  bool restore_draft(std::span<const PromptStates> states, Stream& compute);
  // Reads the states behind row rows() - 1, of all layers; after the draft's rows. `take` enqueues on `in` what copies
  // a layer's part of a snapshot from `data`. False, as for restore_layer().
  using TakeStates = std::function<void(int64_t layer, const std::byte* data, Stream& in)>;
  bool restore_states(const TakeStates& take, Stream& compute);
  // Reads rows [0, rows()) of a layer into the buffer in which it is built, once `free` is done.
  bool restore_layer(int64_t layer, std::byte* buffer, const Event& free, Stream& compute);
  void end_reads() noexcept;  // for error paths too: afterwards nothing reads the ring or writes a buffer
  // The layer's rows are in the cache once `stored` is done. Rows that do not stay in memory are saved from `built`,
  // the buffer in which they were built, before this returns.
  void layer_stored(int64_t layer, KvCache& cache, const std::byte* built, std::shared_ptr<Event> stored);
  // A layer's states at all positions of states_to_save() are in `snapshots`, which outlives the saving, once `taken`
  // is done.
  void states_taken(int64_t layer, const StateSnapshots& snapshots, std::shared_ptr<Event> taken);
  // The draft's rows are complete once `ready` is done. Blocks until their reads are enqueued.
  void draft_made(std::span<const PromptStates> states, std::shared_ptr<Event> ready);

  // ---- the engine ----
  // A block could not be read: it is dropped, and the run must restart with a shorter prefix.
  bool damaged() const { return damaged_; }
  // Waits until everything is saved if all layers were stored, unless `interrupt` is set. `interrupt` and `progress`
  // may be null. `use` has the statistics of earlier attempts at the same run.
  void finish(Progress* progress, const std::atomic<bool>* interrupt, PrefixUse* use);
  // Stops saving; afterwards nothing reads the sequence's memory.
  void abandon() noexcept;

 private:
  void find();
  void note_damage();
  void note_other_prefill();
  void choose_blocks();
  void add_rows_blocks();
  void add_states_block(const PrefixKey& rows, const SegmentRange& range);
  void add_draft_blocks();
  void fit_blocks();
  uint64_t bytes_to_save() const;
  std::set<PrefixKey> to_keep() const;
  bool make_room();
  bool draft_needs(int64_t segment, int64_t first_row) const;
  std::vector<PrefixLoader::Read> open_blocks();
  const std::byte* next_part();
  void lose(const PrefixKey& key, const std::string& why);

  PrefixStore& store_;
  const PrefixRunSetup setup_;
  const std::vector<int32_t> prompt_;
  PrefixMatch match_;
  std::vector<PrefixKey> read_;  // blocks to read: of rows, then of the draft, then of the states
  std::vector<File> files_;      // of those blocks
  std::unique_ptr<Stream> in_;
  std::unique_ptr<Event> arrived_;
  std::unique_ptr<PrefixLoader> loader_;
  std::vector<PrefixKey> chain_;     // of all blocks that may be kept of the prompt, saved or not
  std::vector<PrefixBlock> blocks_;  // to save
  std::unique_ptr<PrefixSaver> saver_;
  bool damaged_ = false, on_gpu_ = false;
  int64_t layers_stored_ = 0, states_taken_ = 0;  // layers
  PrefixUse use_;
};

}  // namespace headrace
