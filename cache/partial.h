// What a partial KV holds and when a step may use it instead of the full KV (docs/design.md, section 8): shapes, bytes,
// the mode of each step. Pure functions of lengths.
//
// A partial KV is a copy of all rows before the tail in fewer bits, in segments with the true positions; selected
// blocks of exact rows (SpecPV sections 3.2 and 3.3); or, where weights have substitutes, the full KV itself. A layer's
// blocks, for each KV head, with the true positions in every key's RoPE:
//   sink        the first kSinkRows rows of the text
//   retrieved   `blocks` blocks of 16 rows, chosen for this layer and KV head, ascending
//   window      all committed rows from window_begin() on, so none is missing
// Pending rows follow in the tail of the KV cache. Slots begin at multiples of kPrefixTile, so the window can be cut by
// a query's position like any prefix.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cache/layout.h"

namespace headrace {

constexpr int64_t kSelectRows = 16;  // rows of a block, the unit of selection
constexpr int64_t kSinkRows = 32;    // two blocks
constexpr int64_t kSinkSlots = 64;   // slot rows reserved for them

// A refresh selects blocks below window_begin(). The rows after it and those that it commits belong to the window until
// the next refresh.
constexpr int64_t kMaxPending = 192;    // the tail ring also holds what the first row of a refresh sees
constexpr int64_t kDeepestJudged = 64;  // levels of a tree after kMaxPending rows: together they fill the tail's window
constexpr int64_t kWindowRows = 576;
static_assert(kMaxPending + kDeepestJudged <= kTailWindow);
static_assert(kTailWindow + kPrefixTile - 1 + kMaxPending + kDeepestJudged <= kWindowRows);

constexpr int64_t kMaxRankedRows = int64_t{1} << 20;

// --block-queries: the queries that select blocks. kRecent: those of at least kScoringRows tokens, with the prompt's or
// the pending ones before a small tree. kTree: those of the tree that a refresh verifies and no others, as in SpecPV;
// the first step after the prompt is then a refresh.
enum class BlockQueries : uint8_t { kRecent, kTree };

// --partial-kv. kAuto: int8, int4 or blocks, by what fits. kExact, never asked for: the full KV itself, all of it on
// the device, where partial steps multiply substitutes of weights.
enum class PartialKind : uint8_t { kAuto, kBlocks, kInt4, kInt8, kExact };
const char* partial_kind_name(PartialKind kind);  // "auto", "blocks", "int4", "int8", "exact"

// The type of the rows of a copy; none: the kind is no copy.
constexpr std::optional<DType> copy_type(PartialKind kind) {
  if (kind == PartialKind::kInt8) return DType::kInt8;
  if (kind == PartialKind::kInt4) return DType::kInt4;
  return std::nullopt;
}
// An int4 row is rotated as a whole (kernels/rows/op.h).
constexpr bool copy_type_fits(DType type, int64_t head_dim) {
  return type != DType::kInt4 || (head_dim >= kInt4Group && (head_dim & (head_dim - 1)) == 0);
}

struct PartialShape {
  int64_t blocks = 0;           // retrieved blocks of each layer and KV head; 0: no partial KV, or a copy
  std::optional<DType> copy{};  // of K and V of a copy of all rows, instead of blocks
  // Of blocks: partial steps see at least so many of the last rows, a multiple of kPrefixTile of at most kTailWindow.
  int64_t window = kTailWindow;
  bool exact = false;  // the full KV itself, without copy and blocks
  bool operator==(const PartialShape&) const = default;
  bool on() const { return blocks > 0 || copy || exact; }
  constexpr bool has_blocks() const { return blocks > 0; }
  const char* name() const { return exact ? "exact" : copy ? dtype_name(*copy) : "blocks"; }  // of a PartialKind

  int64_t retrieved_rows() const { return blocks * kSelectRows; }
  int64_t window_row() const {  // the slot of the window's first row
    return kSinkSlots + ceil_div(retrieved_rows(), kPrefixTile) * kPrefixTile;
  }
  int64_t rows() const { return window_row() + kWindowRows; }
  // The first row of the window. One that is shorter than the tail counts from the last pending row, as in SpecPV.
  int64_t window_begin(int64_t committed, int64_t pending) const {
    if (window == kTailWindow) return tail_begin(committed);
    return std::max<int64_t>(0, committed + std::min<int64_t>(0, pending - window)) / kPrefixTile * kPrefixTile;
  }
  // The shortest context with `blocks` blocks between sink and window; with a copy, the shortest one with rows before
  // the tail.
  int64_t least_context() const {
    if (exact) return 1;
    if (copy) return kTailWindow + kPrefixTile;
    return window + ceil_div(kSinkRows + retrieved_rows(), kPrefixTile) * kPrefixTile;
  }
  // Whether a run of this length needs a partial KV: its context exceeds it, and its blocks can still be ranked.
  bool serves(int64_t context_rows) const {
    return on() && context_rows >= least_context() && (!has_blocks() || context_rows <= kMaxRankedRows);
  }
  uint64_t bytes(const RowShape& shape, int64_t context_rows) const;
};

// The rows of a copy, and the segments of each layer that it has: no query of the run has others before its tail.
// REQUIRES: `type` fits.
RowShape copy_rows(const RowShape& shape, DType type);
int64_t copy_segments(int64_t context_rows);

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
  // Tokens that may be pending. At most kMaxPending: the tail has room for no more.
  int64_t most_pending = kMaxPending;
};
// Partial while `accepted` is at most the interval and there is room for the tokens that the step may add.
StepMode step_mode(const StepState& state);

}  // namespace headrace
