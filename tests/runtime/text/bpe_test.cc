// Merges of one word against the definition: the pair of the lowest rank, leftmost first, until none is left.
#include "runtime/text/bpe.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace headrace {
namespace {

struct RandomMerges {
  BpeDefinition definition;
  std::vector<std::string> tokens;
};

// Byte symbols of a small alphabet, and merges of tokens that are there. Half of the ranks are shared.
RandomMerges random_vocabulary(std::mt19937* random) {
  RandomMerges made;
  made.definition.byte_level = true;
  for (const char c : std::string("abcde")) made.tokens.emplace_back(1, c);
  for (uint32_t i = 0; i < 12; ++i) {
    const auto left = static_cast<int32_t>((*random)() % made.tokens.size());
    const auto right = static_cast<int32_t>((*random)() % made.tokens.size());
    bool known = false;
    for (const BpeMerge& merge : made.definition.merges) known |= merge.left == left && merge.right == right;
    if (known) continue;
    made.definition.merges.push_back({left, right, static_cast<int32_t>(made.tokens.size()), i / 2});
    made.tokens.push_back(made.tokens[static_cast<size_t>(left)] + made.tokens[static_cast<size_t>(right)]);
  }
  for (size_t id = 0; id < made.tokens.size(); ++id) made.definition.words[made.tokens[id]] = static_cast<int32_t>(id);
  return made;
}

std::vector<int32_t> by_definition(const RandomMerges& vocabulary, const std::string& word) {
  std::vector<int32_t> ids;
  for (const char c : word) ids.push_back(vocabulary.definition.words.at(std::string(1, c)));
  for (;;) {
    const BpeMerge* best = nullptr;
    size_t place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (const BpeMerge& merge : vocabulary.definition.merges) {
        if (merge.left != ids[i] || merge.right != ids[i + 1] || (best != nullptr && merge.rank >= best->rank))
          continue;
        best = &merge;
        place = i;
      }
    }
    if (best == nullptr) return ids;
    ids[place] = best->result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(Bpe, MergesByRankAndPlace) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    RandomMerges vocabulary = random_vocabulary(&random);
    const Bpe bpe(vocabulary.definition);
    Bpe::Scratch scratch;
    for (int words = 0; words < 10; ++words) {
      std::string word;
      const size_t length = 1 + random() % 60, letters = 1 + random() % 5;
      for (size_t i = 0; i < length; ++i) word += static_cast<char>('a' + random() % letters);
      std::vector<int32_t> ids;
      bpe.encode(word, &scratch, &ids);
      EXPECT_EQ(ids, by_definition(vocabulary, word)) << word;
      std::vector<int32_t> cut;
      for (size_t begin = 0, at = 1; at <= word.size(); ++at) {
        if (at < word.size() && bpe.may_join(static_cast<uint8_t>(word[at - 1]), static_cast<uint8_t>(word[at])))
          continue;
        bpe.encode(std::string_view(word).substr(begin, at - begin), &scratch, &cut);
        begin = at;
      }
      EXPECT_EQ(cut, ids) << word << " in parts";
    }
  }
}

// A word's memory is a small multiple of its bytes, and is not kept.
TEST(Bpe, ALongWordsMemoryIsGivenBack) {
  std::mt19937 random(2);
  const Bpe bpe(random_vocabulary(&random).definition);
  Bpe::Scratch scratch;
  std::vector<int32_t> ids;
  bpe.encode(std::string(1 << 20, 'a'), &scratch, &ids);
  EXPECT_EQ(scratch.places.capacity(), 0u);
  EXPECT_EQ(scratch.heap.capacity(), 0u);
}

}  // namespace
}  // namespace headrace
