// The bytes of a vocabulary's tokens as a tree, so that tokens which begin alike are looked at once. Immutable once
// made; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace headrace {

class TokenTrie {
 public:
  // A node for each beginning of a token, in the order of a walk from the root: node i's first child, if any, is i + 1.
  struct Node {
    int32_t end = 0;          // behind the last node below this one
    int32_t first_token = 0;  // of tokens(); those of node i end where those of node i + 1 begin
    unsigned char byte = 0;
  };

  // Of tokens [0, vocab) that are text; special ones are not in the tree.
  TokenTrie(const Tokenizer& tokenizer, int64_t vocab);

  int64_t vocab() const { return vocab_; }
  const std::vector<Node>& nodes() const { return nodes_; }  // the root is the first; one more follows the last
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::string& bytes(int32_t token) const { return bytes_[static_cast<size_t>(token)]; }  // "" of none
  const std::vector<int32_t>& special() const { return special_; }
  int32_t longest() const { return longest_; }  // bytes

 private:
  int64_t vocab_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_, special_;
  std::vector<std::string> bytes_;
  int32_t longest_ = 0;
};

}  // namespace headrace
