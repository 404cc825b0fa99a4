// What is done to a piece of text before it is cut into words: nothing, NFC, a prefix, replacements. Immutable; any
// thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// Text whose bytes are marked: was this byte written by the template (special tokens count) or by the user (they are
// text)? One char a byte, 0 or 1; user bytes are 1.
struct MarkedText {
  std::string text;
  std::string verbatim;

  MarkedText substr(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), verbatim.substr(begin, end - begin)};
  }
};

struct NormalizerStep {
  enum Kind { kNfc, kPrepend, kReplace } kind;
  std::string pattern;  // of a kReplace
  std::string content;  // of a kPrepend, kReplace
};

class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizerStep> steps = {}) : steps_(std::move(steps)) {}
  bool empty() const { return steps_.empty(); }
  // Runs of one mark are normalised on their own: a template's text never composes with the user's.
  MarkedText apply(MarkedText piece) const;

 private:
  std::vector<NormalizerStep> steps_;
};

// Unicode normalisation form C, linear in the text even where it is all combining marks.
std::string to_nfc(std::string_view text);

}  // namespace headrace
