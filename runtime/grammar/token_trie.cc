#include "runtime/grammar/token_trie.h"

#include <algorithm>

namespace headrace {

TokenTrie::TokenTrie(const Tokenizer& tokenizer, int64_t vocab) : vocab_(vocab) {
  const auto count = static_cast<int32_t>(std::min<int64_t>(tokenizer.size(), vocab));
  bytes_.resize(static_cast<size_t>(vocab));
  std::vector<int32_t> order;
  for (int32_t id = 0; id < count; ++id) {
    std::string& bytes = bytes_[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
    if (bytes.empty()) continue;
    if (tokenizer.is_special(id)) {
      special_.push_back(id);
    } else {
      order.push_back(id);
      longest_ = std::max(longest_, static_cast<int32_t>(bytes.size()));
    }
  }
  std::sort(order.begin(), order.end(),
            [this](int32_t a, int32_t b) { return bytes(a) != bytes(b) ? bytes(a) < bytes(b) : a < b; });
  nodes_.emplace_back();
  std::vector<size_t> open = {0};  // the nodes of the last token's beginnings
  std::string last;
  const auto close = [&](size_t length) {
    for (; open.size() > length + 1; open.pop_back()) nodes_[open.back()].end = static_cast<int32_t>(nodes_.size());
  };
  for (const int32_t id : order) {
    const std::string& text = bytes(id);
    const auto same = std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin();
    close(static_cast<size_t>(same));
    for (auto i = static_cast<size_t>(same); i < text.size(); ++i) {
      open.push_back(nodes_.size());
      nodes_.push_back(
          {.first_token = static_cast<int32_t>(tokens_.size()), .byte = static_cast<unsigned char>(text[i])});
    }
    tokens_.push_back(id);
    last = text;
  }
  close(0);
  nodes_[0].end = static_cast<int32_t>(nodes_.size());
  nodes_.push_back({.end = nodes_[0].end, .first_token = static_cast<int32_t>(tokens_.size())});
}

}  // namespace headrace
