// What a partial KV holds and when a step may use it instead of the full KV (SpecPV sections 3.2 and 3.3;
// docs/design.md, section 8): shapes, bytes, the mode of each step. Pure functions of lengths.
//
// A layer's partial KV, for each KV head, with the true positions in every key's RoPE:
//   sink        the first kSinkRows rows of the text
//   retrieved   `blocks` blocks of 16 rows, chosen for this layer and KV head, ascending
//   window      all committed rows from a block boundary on, so none is missing
// Pending rows follow in the tail of the KV cache. Slots begin at multiples of kPrefixTile, so the window can be cut by
// a query's position like any prefix.
#pragma once

#include <cstdint>

#include "cache/layout.h"

namespace headrace {

constexpr int64_t kSelectRows = 16;  // rows of a block, the unit of selection
constexpr int64_t kSinkRows = 32;    // two blocks
constexpr int64_t kSinkSlots = 64;   // slot rows reserved for them

// A refresh selects blocks below tail_begin() of its first row. The tail and the rows that it commits belong to the
// window until the next refresh.
constexpr int64_t kMaxPending = 192;    // the tail ring also holds what the first row of a refresh sees
constexpr int64_t kDeepestJudged = 64;  // levels of a tree after kMaxPending rows: together they fill the tail's window
constexpr int64_t kWindowRows = 576;
static_assert(kMaxPending + kDeepestJudged <= kTailWindow);
static_assert(kTailWindow + kPrefixTile - 1 + kMaxPending + kDeepestJudged <= kWindowRows);

constexpr int64_t kMaxRankedRows = int64_t{1} << 20;

struct PartialShape {
  int64_t blocks = 0;  // retrieved blocks of each layer and KV head; 0: no partial KV
  bool operator==(const PartialShape&) const = default;

  int64_t retrieved_rows() const { return blocks * kSelectRows; }
  int64_t window_row() const {  // the slot of the window's first row
    return kSinkSlots + ceil_div(retrieved_rows(), kPrefixTile) * kPrefixTile;
  }
  int64_t rows() const { return window_row() + kWindowRows; }
  // The shortest context with `blocks` blocks between sink and tail.
  int64_t least_context() const {
    return kTailWindow + ceil_div(kSinkRows + retrieved_rows(), kPrefixTile) * kPrefixTile;
  }
  // Whether a run of this length needs a partial KV: its context exceeds it, and can still be ranked.
  bool serves(int64_t context_rows) const {
    return blocks > 0 && context_rows >= least_context() && context_rows <= kMaxRankedRows;
  }
  uint64_t bytes(const RowShape& shape) const;
};

// Bytes of all block summaries: the element-wise maximum and minimum of each block's keys.
uint64_t block_index_bytes(const RowShape& shape, int64_t context_rows);
int64_t block_count(int64_t context_rows);

// What a target pass reads: the full KV; the partial KV; or the full KV while it gathers a new partial KV.
enum class StepMode : uint8_t { kFull, kPartial, kRefresh };
const char* step_mode_name(StepMode mode);  // "full", "partial", "refresh"

struct StepState {
  int64_t rows = 0;           // L: positions before the step's root, pending ones included
  int64_t least_context = 0;  // first context length with a partial KV; 0: never
  bool initialised = false;   // prefill or a refresh has filled the partial KV
  int64_t accepted = 0;       // tokens accepted by and since the last refresh
  int64_t pending = 0;        // of those, tokens that are not in the full KV
  int64_t deepest = 0;        // levels of the next tree
  int64_t interval = 0;       // --refresh-interval
};
// Partial while `accepted` is at most the interval and the tail has room for the rows that the step may add.
StepMode step_mode(const StepState& state);

}  // namespace headrace
