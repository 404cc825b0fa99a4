// What one run takes from the saved prefixes and what it leaves there; the engine makes it, Session::prefill works with
// it. Rows are those of a fresh run, bit for bit, so only such rows are kept as any longer prompt would make in the
// same way (docs/design.md, section 6, rule 1): on the CPU each row of the prompt, as its bits depend on nothing but
// the tokens before it; on a GPU whole groups of a prefill product, as the rows behind the last one go in smaller
// groups, whose sizes depend on the prompt's length. The last prompt token is always computed: its state gives the
// first answer.
//
// A draft that makes its rows from the target's states (EAGLE-3) has blocks of its own, beside the rows, for what its
// window shows; where they are missing or another draft's, the prompt is computed from there on. Drafts that make
// theirs from tokens alone need none. Acceptance is that of a fresh run, and so is the text of an approximate run,
// which depends on it.
//
// Owns the open files, the loader and the saver. Thread: one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "offload/device/device.h"
#include "runtime/base/progress.h"
#include "runtime/draft/draft.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/prefix/loader.h"
#include "runtime/prefix/saver.h"
#include "runtime/prefix/store.h"

namespace headrace {

// Fewer are not worth a file, nor worth taking.
constexpr int64_t kMinSavedRows = 64;

struct PrefixRunSetup {
  RowShape shape;
  PrefixKey identity{};  // rows_cache_key()
  std::string model;     // its name, for people
  int64_t unit = 1;      // rows are kept in multiples of it
  int64_t computed = 1;  // the prompt's last rows that the run computes even if they are saved
  DraftNeeds draft{};    // of the run's draft
  std::span<const int32_t> prompt;
};

// What came of it, for a report.
struct PrefixUse {
  bool asked = false;
  int64_t rows = 0;                          // of the prompt that were not computed
  int64_t saved_rows = 0;                    // the prompt's beginning that is saved now
  int64_t restarts = 0;                      // attempts that a damaged block ended; what they read counts
  uint64_t read_bytes = 0, saved_bytes = 0;  // from the disk, and onto it
  double save_wait_ms = 0;                   // after the last token
  std::vector<std::string> notes;            // what a user should know, a line each
};

class PrefixRun {
 public:
  // Finds the longest saved beginning. `store` outlives the run; prompt and shape are copied.
  PrefixRun(PrefixStore& store, const PrefixRunSetup& setup);
  ~PrefixRun();

  int64_t rows() const { return match_.rows; }   // that need no computing
  uint64_t pinned_bytes(Backend backend) const;  // host memory that it takes while it lasts
  const std::vector<std::string>& notes() const { return use_.notes; }

  // ---- Session::prefill, in this order ----
  // What has to go for what will be saved goes now: the run was found to fit.
  void begin(Device& device);
  // The draft's rows, into its own buffers. False, as of bring_layer(): they are damaged.
  bool bring_draft(std::span<const PromptStates> states, Stream& compute);
  // Rows [0, rows()) of a layer, into the buffer in which it is built once `free` is done.
  bool bring_layer(int64_t layer, std::byte* buffer, const Event& free, Stream& compute);
  void end_reads() noexcept;  // also on the way out of an error: nothing reads the ring or writes a buffer any more
  // The layer's rows are in the cache once `stored` is done. What does not stay there is saved from `built`, the
  // buffer that they were built in, before this returns.
  void layer_stored(int64_t layer, KvCache& cache, const std::byte* built, std::shared_ptr<Event> stored);
  // All of the draft's rows are there once `ready` is done. Blocks until they are on their way.
  void draft_made(std::span<const PromptStates> states, std::shared_ptr<Event> ready);

  // ---- the engine ----
  // A block could not be read: it is dropped, and the run is to begin anew with a shorter beginning.
  bool damaged() const { return damaged_; }
  // Waits for the saving, where all layers have been stored; not once `interrupt` is set. It and `progress` may be
  // null. `use` has what came of earlier attempts at the same run.
  void finish(Progress* progress, const std::atomic<bool>* interrupt, PrefixUse* use);
  // Nothing reads the session's memory any more; what is not saved is not.
  void abandon() noexcept;

 private:
  void find();
  void note_damage();
  void choose_blocks();
  void add_rows_blocks();
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
  std::vector<PrefixKey> read_;  // the blocks that are read: of rows, then of the draft
  std::vector<File> files_;      // theirs
  std::unique_ptr<Stream> in_;
  std::unique_ptr<Event> arrived_;
  std::unique_ptr<PrefixLoader> loader_;
  std::vector<PrefixKey> chain_;     // of all that may be kept of the prompt, saved or not
  std::vector<PrefixBlock> blocks_;  // to be saved
  std::unique_ptr<PrefixSaver> saver_;
  bool damaged_ = false, on_gpu_ = false;
  int64_t layers_stored_ = 0;
  PrefixUse use_;
};

}  // namespace headrace
