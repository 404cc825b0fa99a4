// Which tokens may follow, by a grammar: a mask of one bit a token for each state of its automaton. A pure function of
// the tokens before.
//
// A mask is computed by a walk over the vocabulary's tree. Most of it depends on the top of a stack alone (within a
// string, say, whatever the string is in), so that part is kept and only what leaves it is walked anew.
//
// Owns the automaton and its grammar. Borrows the tree of tokens. Thread: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/grammar/automaton.h"
#include "runtime/grammar/token_trie.h"

namespace headrace {

// [ceil(vocab / 32)]; bit i of word w: token 32 w + i may follow.
using TokenMask = std::vector<uint32_t>;
inline int64_t mask_words(int64_t vocab) { return (vocab + 31) / 32; }

class TokenMasks {
 public:
  // `ends`: the tokens that end an answer. They may follow where the text may end, and nowhere else. `trie` must
  // outlive this.
  TokenMasks(Grammar grammar, const TokenTrie& trie, std::vector<int32_t> ends);
  TokenMasks(const TokenMasks&) = delete;
  TokenMasks& operator=(const TokenMasks&) = delete;

  GrammarState start() const { return automaton_.start(); }
  // The state after a token: the same after one that ends the answer, kDeadState after one that may not follow.
  GrammarState after(GrammarState state, int32_t token);
  bool complete(GrammarState state) const { return automaton_.complete(state); }
  // Valid until the next call. A dead state has no mask: whatever follows it is never taken. All others have a token,
  // if the vocabulary can write what the grammar asks for.
  const TokenMask& mask(GrammarState state);

 private:
  // What follows a part of a stack: the tokens that stay in it, and the nodes of the tree where it ends.
  struct Part {
    TokenMask inside;
    std::vector<int32_t> exits;
  };

  const Part& part(GrammarState state);
  GrammarState part_of(int32_t stack, int32_t* below);
  int32_t shortened(const GrammarStack& loop) const;
  void add_stack(int32_t stack, TokenMask* mask);
  void walk(GrammarState state, int32_t node, TokenMask* mask, std::vector<int32_t>* exits);
  void add_tokens(int32_t node, TokenMask* mask) const;
  void add_special(int32_t stack, TokenMask* mask);

  const Grammar grammar_;
  const TokenTrie& trie_;
  const std::vector<int32_t> ends_;
  Automaton automaton_;
  std::unordered_map<GrammarState, TokenMask> masks_;
  std::unordered_map<GrammarState, Part> parts_;
  std::vector<GrammarState> path_;  // of a walk: the state at each depth
  std::vector<int32_t> open_;       // and the nodes there
};

}  // namespace headrace
