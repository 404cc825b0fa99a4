#include "runtime/text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "runtime/base/utf8.h"

namespace headrace {

namespace {

// \w: letters, marks, decimal digits, letter numbers, connectors, joiners, and letters in circles and squares.
bool is_word(char32_t c) {
  switch (utf8proc_category(static_cast<int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  }
}

// The start of the character before `at`; at > 0.
size_t before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return at;
}

char32_t character_at(std::string_view text, size_t at) { return next_utf8(text.substr(at)).code_point; }

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word(character_at(text, before(text, begin)))) return false;
  return end == text.size() || !is_word(character_at(text, end));
}

}  // namespace

bool AddedToken::is_marker() const {
  if (special) return true;
  if (content.size() < 3) return false;
  return (content.front() == '<' && content.back() == '>') || (content.front() == '[' && content.back() == ']');
}

void AddedTokens::add(const AddedToken& token, const std::string& content) {
  if (content.empty()) return;
  uint32_t node = 0;
  for (char c : content) {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
    const auto [edge, is_new] = edges_.try_emplace(key, static_cast<uint32_t>(token_at_.size()));
    if (is_new) token_at_.push_back(-1);
    node = edge->second;
  }
  first_[static_cast<uint8_t>(content[0])] = true;
  token_at_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

const AddedToken* AddedTokens::longest_at(const MarkedText& text, size_t at, size_t* end) const {
  const AddedToken* longest = nullptr;
  uint32_t node = 0;
  bool verbatim = false;
  for (size_t i = at; i < text.text.size(); ++i) {
    const auto edge = edges_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text.text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    verbatim |= text.verbatim[i] != 0;
    if (token_at_[node] < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(token_at_[node])];
    if (verbatim && token.is_marker()) continue;
    longest = &token;
    *end = i + 1;
  }
  return longest;
}

std::vector<AddedTokens::Piece> AddedTokens::split(const MarkedText& marked) const {
  std::vector<Piece> pieces;
  const std::string_view text = marked.text;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    size_t end = 0;
    const AddedToken* token = first_[static_cast<uint8_t>(text[at])] ? longest_at(marked, at, &end) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    at = end;  // also where rstrip takes more: a token in that white space is found, as by the reference
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    if (token->lstrip) {
      begin = std::max(begin, done);
      while (begin > done && is_white_space(character_at(text, before(text, begin)))) begin = before(text, begin);
    }
    if (token->rstrip)
      while (end < text.size() && is_white_space(character_at(text, end))) end += utf8_length(text[end]);
    if (done < begin) pieces.push_back({done, begin, -1});
    if (begin < end) pieces.push_back({begin, end, token->id});
    done = end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), -1});
  return pieces;
}

}  // namespace headrace
