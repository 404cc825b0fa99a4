#include "runtime/grammar/token_masks.h"

#include <algorithm>
#include <utility>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr size_t kMaxMasks = 1024, kMaxParts = 1024;  // 19 KiB each of a vocabulary of 152K

void set_bit(TokenMask* mask, int32_t token) { (*mask)[static_cast<size_t>(token) / 32] |= 1u << (token % 32); }

}  // namespace

TokenMasks::TokenMasks(Grammar grammar, const TokenTrie& trie, std::vector<int32_t> ends)
    : grammar_(std::move(grammar)), trie_(trie), ends_(std::move(ends)), automaton_(grammar_) {}

GrammarState TokenMasks::after(GrammarState state, int32_t token) {
  if (state == kDeadState || token < 0 || token >= trie_.vocab()) return kDeadState;
  if (std::find(ends_.begin(), ends_.end(), token) != ends_.end()) return complete(state) ? state : kDeadState;
  const std::string& bytes = trie_.bytes(token);
  return bytes.empty() ? kDeadState : automaton_.after(state, bytes);
}

const TokenMask& TokenMasks::mask(GrammarState state) {
  CHECK(state != kDeadState);
  if (const auto known = masks_.find(state); known != masks_.end()) return known->second;
  if (masks_.size() >= kMaxMasks) masks_.clear();
  TokenMask mask(static_cast<size_t>(mask_words(trie_.vocab())));
  const std::span<const int32_t> view = automaton_.stacks(state);
  const std::vector<int32_t> stacks(view.begin(), view.end());
  for (const int32_t stack : stacks) {
    add_stack(stack, &mask);
    add_special(stack, &mask);
  }
  if (complete(state)) {
    for (const int32_t end : ends_) set_bit(&mask, end);
  }
  return masks_.emplace(state, std::move(mask)).first->second;
}

// A mark around thinking may be a special token, as may be what is within; JSON has none, whatever its bytes are.
void TokenMasks::add_special(int32_t stack, TokenMask* mask) {
  if (automaton_.stack(stack).node < grammar_.thinking) return;
  const GrammarState state = automaton_.state_of(stack);
  for (const int32_t token : trie_.special()) {
    if (std::find(ends_.begin(), ends_.end(), token) != ends_.end()) continue;
    if (automaton_.after(state, trie_.bytes(token)) != kDeadState) set_bit(mask, token);
  }
}

// Loops count so far that no token gets there; these numbers are all the same to a mask.
int32_t TokenMasks::shortened(const GrammarStack& loop) const {
  const GrammarNode& node = automaton_.node(loop.node);
  const int32_t far = trie_.longest() + 1;
  if (loop.count < node.min) return std::max(loop.count, node.min - far);
  return node.max < 0 ? loop.count : std::max(loop.count, node.max - far);
}

// The state of a stack's top, up to the loop that it is in. `below`: the rest.
GrammarState TokenMasks::part_of(int32_t stack, int32_t* below) {
  const GrammarStack top = automaton_.stack(stack);
  *below = top.below;
  int32_t base = kPartEnd;
  if (top.below > kPartEnd) {
    GrammarStack loop = automaton_.stack(top.below);
    if (loop.count != kFollows) {
      *below = loop.below;
      loop.count = shortened(loop);
      loop.below = kPartEnd;
      base = automaton_.push(loop);
    }
  }
  return automaton_.state_of(automaton_.push({.node = top.node, .count = kFollows, .below = base}));
}

const TokenMasks::Part& TokenMasks::part(GrammarState state) {
  if (const auto known = parts_.find(state); known != parts_.end()) return known->second;
  if (parts_.size() >= kMaxParts) parts_.clear();
  Part part{.inside = TokenMask(static_cast<size_t>(mask_words(trie_.vocab()))), .exits = {}};
  walk(state, 0, &part.inside, &part.exits);
  return parts_.emplace(state, std::move(part)).first->second;
}

void TokenMasks::add_stack(int32_t stack, TokenMask* mask) {
  int32_t below = kTextEnd;
  const Part& top = part(part_of(stack, &below));
  for (size_t i = 0; i < mask->size(); ++i) (*mask)[i] |= top.inside[i];
  if (below == kTextEnd || top.exits.empty()) return;
  const GrammarState behind = automaton_.state_behind(below);
  for (const int32_t node : top.exits) walk(behind, node, mask, nullptr);
}

// The tokens below `node` that may follow `state`, which is the state there. `exits`: the nodes where the part ends.
void TokenMasks::walk(GrammarState state, int32_t node, TokenMask* mask, std::vector<int32_t>* exits) {
  const std::vector<TokenTrie::Node>& nodes = trie_.nodes();
  path_.assign(1, state);
  open_.assign(1, nodes[static_cast<size_t>(node)].end);
  for (int32_t i = node + 1; i < nodes[static_cast<size_t>(node)].end;) {
    while (open_.back() <= i) {
      open_.pop_back();
      path_.pop_back();
    }
    const TokenTrie::Node& here = nodes[static_cast<size_t>(i)];
    const GrammarState next = automaton_.after(path_.back(), here.byte);
    if (next == kDeadState) {
      i = here.end;
      continue;
    }
    add_tokens(i, mask);
    if (exits != nullptr && automaton_.part_ends(next)) exits->push_back(i);
    path_.push_back(next);
    open_.push_back(here.end);
    ++i;
  }
}

void TokenMasks::add_tokens(int32_t node, TokenMask* mask) const {
  const size_t at = static_cast<size_t>(node);
  for (int32_t i = trie_.nodes()[at].first_token; i < trie_.nodes()[at + 1].first_token; ++i) {
    set_bit(mask, trie_.tokens()[static_cast<size_t>(i)]);
  }
}

}  // namespace headrace
