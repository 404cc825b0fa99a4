// Predicts by look-up: finds earlier occurrences of the last tokens, in prompt or answer, and proposes what followed
// them; a tree if different tokens followed. No weights. Sources: prompt look-up decoding (Saxena 2023), and the hash
// chains of LZ77 compressors, which make the cost of a step independent of the context. Owns a copy of the text. Pure:
// it knows no model and no device. Thread: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/speculation/tree.h"

namespace headrace {

// The size of a tree, and the least likelihood of its nodes. The likelihood is estimated from the places that led to a
// node's parent, weighted by the square of the number of tokens that agree.
struct NgramLimits {
  int64_t nodes = 16;  // the root included
  int64_t depth = 12;
  double likelihood = 0.2;
};

class NgramIndex {
 public:
  // `most_tokens`: most tokens of the text. Allocates all memory.
  explicit NgramIndex(int64_t most_tokens);
  static uint64_t bytes(int64_t most_tokens);  // host memory

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  void append(int32_t token);
  void append(std::span<const int32_t> tokens);
  void cut(int64_t size);  // forgets the tokens from there on
  // Fills the tree below the text's last token, its root; scores are logarithms of likelihoods. REQUIRES: a text that
  // is not empty.
  void propose(const NgramLimits& limits, Tree* tree) const;

 private:
  // Lengths of the look-ups, the most specific first: a long run of tokens has few places, which predict well.
  static constexpr std::array<int64_t, 3> kOrders = {6, 4, 2};
  static constexpr int64_t kMaxPlaces = 32;     // places per look-up, the latest ones
  static constexpr int64_t kMaxSteps = 64;      // along one chain
  static constexpr int64_t kMaxAgreement = 32;  // tokens compared backwards

  // The places of each run of `order` tokens, latest first: a bucket holds the last token of the latest run with its
  // hash, `before` the one before that. Runs in one bucket may differ, so a walk compares them.
  struct Chains {
    std::vector<int32_t> buckets, before;  // -1: none
  };
  // A place in the text: the next token there, and how many tokens before it agree with the end of the text.
  struct Place {
    int64_t next, agreement;
  };
  struct Places {
    std::array<Place, kMaxPlaces> at;
    int64_t count = 0;
  };
  class Growth;

  size_t bucket(size_t order, int64_t last) const;
  int64_t agreement(int64_t last) const;
  Places find_places() const;

  std::vector<int32_t> tokens_;
  std::array<Chains, kOrders.size()> chains_;
};

}  // namespace headrace
