// Guesses by look-up: where the last tokens stood before, in the prompt or in the answer, what followed then is
// proposed now; a tree, when different things followed. No weights. Sources: prompt look-up decoding (Saxena 2023), and
// the hash chains of LZ77 compressors, by which a step costs the same whatever the context. Owns a copy of the text.
// Pure: it knows no model and no device. Thread: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/speculation/tree.h"

namespace headrace {

// How large a tree may be, and how likely a node must be to be in it. A node's likelihood is estimated: of the places
// that led to its parent, those where more of the text agrees count for more, by the square of the tokens that agree.
struct NgramLimits {
  int64_t nodes = 16;  // the root included
  int64_t depth = 12;
  double likelihood = 0.2;
};

class NgramIndex {
 public:
  // `most_tokens`: the text will not be longer. All memory is taken here.
  explicit NgramIndex(int64_t most_tokens);
  static uint64_t bytes(int64_t most_tokens);  // host memory

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  void append(int32_t token);
  void append(std::span<const int32_t> tokens);
  void cut(int64_t size);  // forgets the tokens from there on
  // Fills the tree under the text's last token, its root. REQUIRES: a text that is not empty.
  void propose(const NgramLimits& limits, Tree* tree) const;

 private:
  // What is looked up, the most telling first: a long run of tokens has few places, and they predict well.
  static constexpr std::array<int64_t, 3> kOrders = {6, 4, 2};
  static constexpr int64_t kMaxPlaces = 32;     // that one look-up considers, the latest ones
  static constexpr int64_t kMaxSteps = 64;      // along one chain
  static constexpr int64_t kMaxAgreement = 32;  // tokens compared backwards

  // The places of each run of `order` tokens, latest first: a bucket names the last token of the latest run with its
  // hash, `before` the one before that. Runs of one bucket may differ: whoever walks compares.
  struct Chains {
    std::vector<int32_t> buckets, before;  // -1: none
  };
  // A place in the text: the token that follows there, and how many before it agree with the text's last ones.
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
