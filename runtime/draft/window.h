// How much of the context a draft attends to. Plain values; pure.
#pragma once

#include <cstdint>

namespace headrace {

struct DraftWindow {
  int64_t rows = 0;  // most recent rows that a query sees, besides the first few; 0: all
  // The positions that the draft was trained with, if `rows` follows from them; 0: a flag or the draft's config set it.
  int64_t trained_positions = 0;
};

// The window of a draft that was trained with `max_positions`: the window itself, the rows that are kept until a whole
// tile can go, the first rows and a tree of `deepest` levels together have no more positions. A draft with very few
// positions gets the minimum window; it only drafts badly.
int64_t trained_window(int64_t max_positions, int64_t deepest);
// The default window of a small model; 0: all rows, for a run that has no more. At most 1,024 rows, and few enough that
// all distances, in a tree of `deepest` levels, stay within its positions.
int64_t usual_window(int64_t max_positions, int64_t context_tokens, int64_t deepest);

}  // namespace headrace
