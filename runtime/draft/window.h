// How much of the context a draft attends to. Plain values; pure.
#pragma once

#include <cstdint>

namespace headrace {

// --draft-cache retrieval: chunks of the text before the window that a query sees too (runtime/draft/retrieval.h).
struct RetrievalShape {
  int64_t chunks = 0;  // most of them beside the first; 0: none, of an option: as many as the draft has by default
  int64_t rows = 32;   // of a chunk
  int64_t every = 4;   // target passes from choice to choice

  int64_t placed_rows() const { return chunks > 0 ? (1 + chunks) * rows : 0; }
};

struct DraftWindow {
  int64_t rows = 0;  // most recent rows that a query sees, besides the first few; 0: all
  // The positions that the draft was trained with, if `rows` follows from them; 0: a flag or the draft's config set it.
  int64_t trained_positions = 0;
  RetrievalShape retrieval{};
};

// The window of a draft that was trained with `max_positions`: the window itself, the rows that are kept until a whole
// tile can go, the first rows and a tree of `deepest` levels together have no more positions. A draft with very few
// positions gets the minimum window; it only drafts badly.
int64_t trained_window(int64_t max_positions, int64_t deepest);
// The default window of a small model; 0: all rows, for a run that has no more. At most 1,024 rows, and few enough that
// all distances, in a tree of `deepest` levels, stay within its positions.
int64_t usual_window(int64_t max_positions, int64_t context_tokens, int64_t deepest);

// With chosen chunks, for a draft whose positions reach as far as `most_rows`: `window` recent rows (-1: as many as
// usual) and `asked` chunks, `usual_chunks` if it says none, or as many as fit the positions. All rows if these are no
// fewer than the context, and the positions reach so far.
DraftWindow retrieval_window(const RetrievalShape& asked, int64_t usual_chunks, int64_t window, int64_t most_rows,
                             int64_t context_tokens);

}  // namespace headrace
