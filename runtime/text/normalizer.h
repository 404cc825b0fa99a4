// Transforms text before it is split into words: nothing, NFC, a prefix, replacements. Immutable; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// Text with a mark for each byte: written by the template (special tokens count) or by the user (they are plain text).
// One char a byte, 0 or 1; user bytes are 1.
struct MarkedText {
  std::string text;
  std::string verbatim;

  MarkedText substr(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), verbatim.substr(begin, end - begin)};
  }
};

struct NormalizerStep {
  enum Kind { kNfc, kPrepend, kReplace } kind;
  std::string pattern;  // for kReplace
  std::string content;  // for kPrepend, kReplace
};

class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizerStep> steps = {}) : steps_(std::move(steps)) {}
  bool empty() const { return steps_.empty(); }
  // Runs of one mark are normalised separately: a template's text never composes with the user's.
  MarkedText apply(MarkedText piece) const;

 private:
  std::vector<NormalizerStep> steps_;
};

// Unicode normalisation form C, in linear time even for long runs of combining marks.
std::string to_nfc(std::string_view text);

}  // namespace headrace
