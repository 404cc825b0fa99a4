#include "runtime/draft/window.h"

#include <algorithm>

#include "runtime/draft/cache.h"

namespace headrace {
namespace {

// Small models use the near past: in SpecExtend's appendix E.1 a draft cache of 1K to 2K is best, and the draft gets
// worse beyond 2K. The most positions of a config are more than small-lm can use (measured on a novel: 25% of its
// guesses are correct with 512 tokens of context, 24% with 1,024, 13% with 1,976).
constexpr int64_t kUsualWindow = 1024;
// Beside chosen chunks, as in SpecExtend's code.
constexpr int64_t kWindowBesideChunks = 512;

}  // namespace

int64_t trained_window(int64_t max_positions, int64_t deepest) {
  return std::max(kMinDraftWindow, max_positions - deepest - kPrefixTile - kDraftSinkRows);
}

int64_t usual_window(int64_t max_positions, int64_t context_tokens, int64_t deepest) {
  if (context_tokens <= std::min(max_positions, kUsualWindow)) return 0;
  return std::min(trained_window(max_positions, deepest), kUsualWindow);
}

DraftWindow retrieval_window(const RetrievalShape& asked, int64_t usual_chunks, int64_t window, int64_t most_rows,
                             int64_t context_tokens) {
  RetrievalShape shape = asked;
  const int64_t rows = window > 0 ? window : std::max(kMinDraftWindow, std::min(kWindowBesideChunks, most_rows / 2));
  if (shape.chunks == 0) shape.chunks = std::clamp<int64_t>((most_rows - rows) / shape.rows - 1, 1, usual_chunks);
  if (context_tokens <= std::min(rows + shape.placed_rows(), most_rows)) return {};
  return {.rows = rows, .retrieval = shape};
}

}  // namespace headrace
