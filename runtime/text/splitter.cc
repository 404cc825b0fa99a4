#include "runtime/text/splitter.h"

namespace headrace {

void Splitter::split_by(size_t pattern, std::string_view text, Regex::Scratch* scratch, const Emit& emit) const {
  if (text.empty()) return;
  if (pattern == patterns_.size()) {
    emit(text);
    return;
  }
  size_t done = 0;
  Regex::Match match;
  while (patterns_[pattern].find(text, done, scratch, &match)) {
    split_by(pattern + 1, text.substr(done, match.begin - done), scratch, emit);
    split_by(pattern + 1, text.substr(match.begin, match.end - match.begin), scratch, emit);
    done = match.end;
  }
  split_by(pattern + 1, text.substr(done), scratch, emit);
}

}  // namespace headrace
