// The KV cache of a draft: a ring of rows a layer, so that with a window it is constant in the context (LongSpec
// section 3.1; StreamingLLM's sinks). Without one the ring holds the whole context. Rows keep the RoPE of their own
// positions, sinks too unless their owner moves them along. Owns device memory; kernels see views. Thread: one at a
// time.
//
// What a query at position t sees: the first kDraftSinkRows rows, if they stay, and from first_kept(t) on; first_kept()
// is a multiple of kPrefixTile, so up to 63 rows more than the window. All of it while the context is shorter than the
// window.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/layout.h"
#include "kernels/attention/op.h"
#include "offload/device/device.h"
#include "runtime/model/forward.h"

namespace headrace {

constexpr int64_t kDraftSinkRows = 4;
constexpr int64_t kMinDraftWindow = kTailWindow + kPrefixTile;  // the tail is always seen whole

// Where the first rows seem to lie once the window has left them behind.
enum class SinkRows {
  kStay,             // at their own positions, as drafts know them that were trained with them so
  kFollowTheWindow,  // right before first_kept(), so that no distance exceeds the window (StreamingLLM section 3.2)
  kGo                // nowhere: they are left behind as all others, as drafts know it that were trained without them
};

struct DraftCacheShape {
  RowShape rows;
  int64_t context_rows = 0;     // the most rows that the run may come to
  int64_t window = 0;           // rows that a query sees; 0: all
  int64_t pass_rows = 0;        // rows of the tree that is being built
  int64_t most_taken_back = 0;  // rows that rewind() may take back
  SinkRows sinks = SinkRows::kStay;

  bool windowed() const { return window > 0 && window < context_rows; }
  int64_t ring_rows() const;
  uint64_t bytes() const;  // device memory
  int64_t first_kept(int64_t position) const;
  // Where the runs before the tails of queries down to `deepest` end. Without a window it is a multiple of many rows,
  // so that calls that depend on it are seldom others: what lies beyond a query's own prefix is a no-op.
  int64_t prefix_end(int64_t deepest) const;
};

class DraftCache {
 public:
  DraftCache(Device& device, const DraftCacheShape& shape);

  int64_t rows() const { return rows_; }
  const DraftCacheShape& shape() const { return shape_; }

  // ---- prefill ----
  // Where the row of `position` and those after it go, and how many fit there without a break.
  struct Run {
    KvRows to;
    int64_t rows;
  };
  Run ring_run(int64_t layer, int64_t position) const;
  // Rows [0, kDraftSinkRows), for a prompt whose beginning the ring does not hold. With kFollowTheWindow the owner
  // writes them anew whenever first_kept(rows()) has moved.
  KvRows sinks(int64_t layer) const;
  void set_rows(int64_t rows, bool sinks_written);

  // ---- steps ----
  KvRows pass_rows_from(int64_t layer, int64_t pass_row) const;  // [pass_rows, kv_heads, head_dim]
  // The runs that lie before the tail of every query from position rows() to `deepest`, in order, to prefix_end().
  void prefix(int64_t layer, int64_t deepest, std::vector<KvSegment>* out) const;
  struct Tail {
    const void *ring_k, *ring_v, *pass_k, *pass_v;
  };
  Tail tail(int64_t layer) const;
  // Position rows() + j becomes pass row source[j] (device memory).
  void append(const int32_t* source, int64_t count, Stream& compute);
  void rewind(int64_t rows);  // rows from there on are forgotten

 private:
  std::byte* k_of(int64_t layer) const;
  std::byte* v_of(int64_t layer) const;
  void keep_sinks(Stream& compute);

  const DraftCacheShape shape_;
  const int64_t ring_rows_;
  int64_t rows_ = 0;
  bool sinks_kept_ = false;
  DeviceBuffer ring_, sinks_, pass_;
};

}  // namespace headrace
