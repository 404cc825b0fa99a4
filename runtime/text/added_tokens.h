// Finds added tokens ("<|im_end|>") in text before any other processing: leftmost first, then the longest. Immutable
// once filled; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/text/normalizer.h"

namespace headrace {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // decode may omit it
  bool normalized = false;   // matched in normalised text, and normalised itself
  bool single_word = false;  // not next to a letter, digit or underscore
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // and after it

  // Never matched in a user's text: every special token, and markup such as "<think>" or "[INST]" that a vocabulary
  // lists as an ordinary added token. Other added tokens (runs of spaces, for example) are matched anywhere, as in the
  // reference.
  bool is_marker() const;
};

class AddedTokens {
 public:
  void add(const AddedToken& token, const std::string& content);  // `content`: the text to match

  struct Piece {
    size_t begin, end;
    int32_t id;  // -1: text between tokens
  };
  // Splits the text into non-empty pieces. They overlap where a token takes white space in which another one is.
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
