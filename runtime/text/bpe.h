// Byte-pair encoding of one word: initial symbols, then merges by rank, leftmost first. O(n log n) for n symbols of any
// word. Immutable once made; any thread, each with a separate Scratch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace headrace {

struct BpeMerge {
  int32_t left, right, result;
  uint32_t rank;  // lower first; equal ranks: the leftmost first
};

struct BpeDefinition {
  bool byte_level = false;       // initial symbols are bytes; otherwise characters
  bool ignore_merges = false;    // a word that is a token is not split
  bool whole_line_ends = false;  // the same of words of line ends alone
  bool byte_fallback = false;    // a character without a token becomes its bytes' tokens, if all exist
  bool fuse_unk = false;
  int32_t unk = -1;  // for a character without a token; -1: the character is dropped, as in the reference
  // The text of each token inside a word: bytes (byte_level) or characters. Without special tokens, so that no text can
  // become one.
  std::unordered_map<std::string, int32_t> words;
  std::array<int32_t, 256> byte_tokens;  // <0x00> … <0xFF>; -1: absent
  std::vector<BpeMerge> merges;

  BpeDefinition() { byte_tokens.fill(-1); }
};

class Bpe {
 public:
  explicit Bpe(BpeDefinition definition);

  struct Scratch {
    // A place for each symbol that the word began with. A symbol has as many as it was merged of: its id is in the
    // first, and if there are others, the second and the last have -1 - count.
    std::vector<int32_t> places;
    std::vector<uint64_t> heap;  // rank << 32 | place
  };
  void encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* out) const;

  bool byte_level() const { return definition_.byte_level; }
  // Whether some token may span the border between these neighbouring characters, of byte symbols: bytes. If not, a
  // long text can be cut there without changing its tokens. May err towards true.
  bool may_join(char32_t left, char32_t right) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct PairSlot {
    uint64_t key = UINT64_MAX;
    uint32_t rank = kNone;
    int32_t result = -1;
  };
  const PairSlot& find_pair(int32_t left, int32_t right) const;
  void build_pairs();
  void build_bytes();
  void build_characters();
  void build_line_ends();
  int32_t whole_word(std::string_view word) const;
  void add_symbols(std::string_view word, std::vector<int32_t>* symbols) const;
  int32_t character_token(char32_t character) const;
  bool byte_symbols(std::string_view character, std::vector<int32_t>* symbols) const;
  const PairSlot* pair_at(const std::vector<int32_t>& places, size_t place) const;
  void offer(size_t place, Scratch* scratch) const;
  void merge(Scratch* scratch) const;

  BpeDefinition definition_;
  std::vector<PairSlot> pairs_;  // open addressing, a power of two
  std::array<int32_t, 256> byte_symbols_;
  std::array<int32_t, 128> ascii_;  // character symbols
  std::unordered_map<char32_t, int32_t> characters_;
  std::vector<int32_t> line_ends_;  // by their number: the token of so many; -1: there is none. Of whole_line_ends
  std::vector<bool> joins_;  // one bit per hash of a pair of characters, or of bytes, that occurs inside some token
};

}  // namespace headrace
