// Added tokens ("<|im_end|>") found in text before anything else is done to it: leftmost first, the longest of those.
// Immutable once filled; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/text/normalizer.h"

namespace headrace {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // decode may leave it out
  bool normalized = false;   // looked for in normalised text, and normalised itself
  bool single_word = false;  // not next to a letter, digit or underscore
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it

  // Never found in a user's text: every special token, and markup such as "<think>" or "[INST]" that a vocabulary lists
  // as an ordinary added token. Others (runs of spaces, say) are found anywhere, as the reference does.
  bool is_marker() const;
};

class AddedTokens {
 public:
  void add(const AddedToken& token, const std::string& content);  // `content`: as it is looked for

  struct Piece {
    size_t begin, end;
    int32_t id;  // -1: text between tokens
  };
  // Cuts all of the text into pieces, none of them empty.
  std::vector<Piece> split(const MarkedText& text) const;
  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* longest_at(const MarkedText& text, size_t at, size_t* end) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<uint64_t, uint32_t> edges_;  // a trie: node << 8 | byte -> node
  std::vector<int32_t> token_at_{-1};             // node -> index into tokens_
  bool first_[256] = {};                          // bytes that begin some token
};

}  // namespace headrace
