// Predicts by look-up: proposes what followed the longest suffix of the text that occurred before, and what followed
// shorter ones; a tree if different tokens followed. No weights. Sources: prompt look-up decoding (Saxena 2023), and
// the blending of contexts of all lengths in PPM compressors (Cleary, Witten 1984). Pure. Thread: one at a time.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/draft/ngram/suffix_automaton.h"
#include "runtime/speculation/tree.h"

namespace headrace {

// The size of a tree, and the least likelihood of its nodes.
struct NgramLimits {
  int64_t nodes = 16;  // the root included
  int64_t depth = 12;
  double likelihood = 0.19;  // what followed one token the only time that it occurred has 0.2
};

class NgramIndex {
 public:
  // `most_tokens`: most tokens of the text. Allocates all memory.
  explicit NgramIndex(int64_t most_tokens) : text_(most_tokens) {}
  static uint64_t bytes(int64_t most_tokens) { return SuffixAutomaton::bytes(most_tokens); }  // host memory

  std::span<const int32_t> text() const { return text_.text(); }
  int64_t size() const { return static_cast<int64_t>(text().size()); }
  // A negative token ends a text: nothing is proposed beyond it.
  void append(int32_t token) { text_.append(token); }
  void append(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) append(token);
  }
  void cut(int64_t size) { text_.cut(size); }  // forgets the tokens from there on
  // Fills the tree below the text's last token, its root; scores are logarithms of likelihoods. The same text gives the
  // same tree, whatever was cut. REQUIRES: a text that is not empty.
  void propose(const NgramLimits& limits, Tree* tree) const;

 private:
  class Growth;

  SuffixAutomaton text_;
};

}  // namespace headrace
