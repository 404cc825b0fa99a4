// The KV cache of a draft: a ring of rows per layer, so with a window its size is independent of the context (LongSpec
// section 3.1; StreamingLLM's sinks). Without a window the ring holds the whole context. Rows keep the RoPE of their
// positions, sinks too unless their owner moves them. Owns device memory; kernels see views. Thread: one at a time.
//
// A query at position t sees the first kDraftSinkRows rows, if they stay, and the rows from first_kept(t) on.
// first_kept() is a multiple of kPrefixTile, so a query sees up to 63 rows more than the window. While the context is
// shorter than the window it sees everything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cache/layout.h"
#include "kernels/attention/op.h"
#include "offload/device/device.h"
#include "runtime/layers/attention.h"

namespace headrace {

constexpr int64_t kDraftSinkRows = 4;
constexpr int64_t kMinDraftWindow = kTailWindow + kPrefixTile;  // the tail is always fully visible

// Positions of the first rows once the window has moved past them.
enum class SinkRows {
  kStay,             // their own positions, for drafts trained that way
  kFollowTheWindow,  // directly before first_kept(), so that no distance exceeds the window (StreamingLLM section 3.2)
  kGo                // dropped like all other rows, for drafts trained without sinks
};

struct DraftCacheShape {
  RowShape rows{};
  int64_t context_rows = 0;     // most rows of the run
  int64_t window = 0;           // rows that a query sees; 0: all
  int64_t pass_rows = 0;        // rows of the tree that is being built
  int64_t most_taken_back = 0;  // most rows that rewind() may remove
  SinkRows sinks = SinkRows::kStay;
  // Most rows of chosen chunks, the first one among them, that stand before the window in place of the first rows.
  // Unless 0, the ring holds the whole context. REQUIRES: with rows, kFollowTheWindow.
  int64_t chosen_rows = 0;

  bool windowed() const { return window > 0 && window < context_rows; }
  // Rows placed before the window: 0 if the first rows stay where they are, or go.
  int64_t placed_rows() const {
    return windowed() && sinks == SinkRows::kFollowTheWindow ? std::max(kDraftSinkRows, chosen_rows) : 0;
  }
  int64_t ring_rows() const;
  uint64_t bytes() const;  // device memory
  int64_t first_kept(int64_t position) const;
  // The end of the runs before the tails of queries down to `deepest`. Without a window it is a multiple of many rows,
  // so that calls that depend on it rarely change: rows beyond a query's own prefix are no-ops.
  int64_t prefix_end(int64_t deepest) const;
};

class DraftCache {
 public:
  DraftCache(Device& device, const DraftCacheShape& shape);

  int64_t rows() const { return rows_; }
  const DraftCacheShape& shape() const { return shape_; }

  // ---- prefill ----
  // The destination of the row of `position` and the next ones, and how many fit contiguously.
  struct Run {
    KvRows to;
    int64_t rows;
  };
  Run ring_run(int64_t layer, int64_t position) const;
  // Rows [0, kDraftSinkRows), for a prompt whose beginning the ring does not hold.
  KvRows sinks(int64_t layer) const;
  void set_rows(int64_t rows, bool sinks_written);
  // The same where an earlier run has made the first rows. Before others are written: their first, which these may
  // overwrite, are kept if they are needed.
  void keep_first_rows(Stream& compute);
  void continue_to(int64_t rows, Stream& compute);

  // ---- steps ----
  KvRows pass_rows_from(int64_t layer, int64_t pass_row) const;  // [pass_rows, kv_heads, head_dim]
  // Chunks of the text, in device memory: of `rows` rows each, ascending, all before first_kept(rows()).
  struct Chunks {
    const int32_t* chosen = nullptr;
    int64_t count = 0, rows = 0;
  };
  // With kFollowTheWindow: the first rows or, if there are any, those of the chunks come directly before the window.
  // Called whenever first_kept(rows()) or the choice has changed. `cos_sin`: as of rope(), [context_rows, head_dim].
  void place(const Chunks& chunks, const float* cos_sin, Stream& compute);
  // first_kept(rows()) when they were last placed; 0: never.
  int64_t placed_before() const { return placed_before_; }
  int64_t placed_rows() const { return placed_; }  // that prefix() has before the window
  // The runs before the tail of every query from position rows() to `deepest`, in order, up to prefix_end().
  void prefix(int64_t layer, int64_t deepest, std::vector<KvSegment>* out) const;
  TailRows tail(int64_t layer) const;
  // Position rows() + j becomes pass row source[j] (device memory).
  void append(const int32_t* source, int64_t count, Stream& compute);
  void rewind(int64_t rows);  // forgets the rows from there on
  // The same for a later run, by any number of rows. Beyond most_taken_back the ring has others in the place of some.
  void go_back(int64_t rows);

 private:
  std::byte* k_of(int64_t layer) const;
  std::byte* v_of(int64_t layer) const;
  void keep_sinks(Stream& compute);
  KvRows placed_rows_of(int64_t layer) const;
  void placed_segments(int64_t layer, int64_t first, std::vector<KvSegment>* out) const;

  const DraftCacheShape shape_;
  const int64_t ring_rows_;
  int64_t rows_ = 0, placed_before_ = 0, placed_ = 0;
  bool sinks_kept_ = false;
  DeviceBuffer ring_, sinks_, pass_, placed_memory_;
};

}  // namespace headrace
