// What a partial KV holds and when it may stand for the full KV (SpecPV sections 3.2 and 3.3; docs/design.md, section
// 8): shapes, bytes and the choice of each step's mode. Pure functions of lengths; no memory is touched.
//
// A layer's partial KV, for each KV head, with the true positions in every key's RoPE:
//   sink        the first kSinkRows rows of the text
//   retrieved   `blocks` blocks of 16 rows, chosen for this layer and KV head, ascending
//   window      all committed rows from a block boundary on: none is invisible
// and after it, in the KV cache's tail, the pending rows. Slots lie at multiples of kPrefixTile, so that the window can
// be cut by a query's position as any prefix is.
#pragma once

#include <cstdint>

#include "cache/layout.h"

namespace headrace {

constexpr int64_t kSelectRows = 16;  // of a block, the unit of choice
constexpr int64_t kSinkRows = 32;    // two blocks
constexpr int64_t kSinkSlots = 64;   // rows that they take

// A refresh chooses among the blocks that lie before tail_begin() of its first row. What it commits behind them, and
// the tail itself, is window until the next refresh.
constexpr int64_t kMaxPending = 192;    // the tail ring keeps what a refresh's first row sees beside them
constexpr int64_t kDeepestJudged = 64;  // levels of a tree behind so many pending rows: they fill the tail's window
constexpr int64_t kWindowRows = 576;
static_assert(kMaxPending + kDeepestJudged <= kTailWindow);
static_assert(kTailWindow + kPrefixTile - 1 + kMaxPending + kDeepestJudged <= kWindowRows);

constexpr int64_t kMaxRankedRows = int64_t{1} << 20;

struct PartialShape {
  int64_t blocks = 0;  // retrieved, for each layer and KV head; 0: no partial KV
  bool operator==(const PartialShape&) const = default;

  int64_t retrieved_rows() const { return blocks * kSelectRows; }
  int64_t window_row() const {  // the slot of the window's first row
    return kSinkSlots + ceil_div(retrieved_rows(), kPrefixTile) * kPrefixTile;
  }
  int64_t rows() const { return window_row() + kWindowRows; }
  // The shortest context that has as many blocks between sink and tail as are chosen.
  int64_t least_context() const {
    return kTailWindow + ceil_div(kSinkRows + retrieved_rows(), kPrefixTile) * kPrefixTile;
  }
  // Whether a run of so many tokens has use for it: its context outgrows it, and is not beyond what can be ranked.
  bool serves(int64_t context_rows) const {
    return blocks > 0 && context_rows >= least_context() && context_rows <= kMaxRankedRows;
  }
  uint64_t bytes(const RowShape& shape) const;
};

// Of all layers' summaries: the largest and the least key of each block.
uint64_t block_index_bytes(const RowShape& shape, int64_t context_rows);
int64_t block_count(int64_t context_rows);

// What a target pass reads: the full KV; the partial KV; or the full KV, leaving a fresh partial KV.
enum class StepMode : uint8_t { kFull, kPartial, kRefresh };
const char* step_mode_name(StepMode mode);  // "full", "partial", "refresh"

struct StepState {
  int64_t rows = 0;           // L: positions before the step's root, pending ones included
  int64_t least_context = 0;  // from which on there is a partial KV; 0: never
  bool initialised = false;   // a refresh, or prefill, has filled it
  int64_t accepted = 0;       // tokens since and including the last refresh
  int64_t pending = 0;        // of them, those that are not in the full KV
  int64_t deepest = 0;        // levels of the coming tree
  int64_t interval = 0;       // --refresh-interval
};
// Partial while the tokens accepted since and including the last refresh are at most the interval, and the tail has
// room for as many as the step may add.
StepMode step_mode(const StepState& state);

}  // namespace headrace
