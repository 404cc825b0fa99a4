#include "runtime/draft/window.h"

#include <algorithm>

#include "runtime/draft/cache.h"

namespace headrace {

int64_t trained_window(int64_t max_positions, int64_t deepest) {
  return std::max(kMinDraftWindow, max_positions - deepest - kPrefixTile - kDraftSinkRows);
}

}  // namespace headrace
