// The parts of a Tokenizer. Internal to runtime/text: the loaders fill a TokenizerParts, tokenizer.cc uses it.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/text/added_tokens.h"
#include "runtime/text/bpe.h"
#include "runtime/text/chunk_cache.h"
#include "runtime/text/normalizer.h"
#include "runtime/text/splitter.h"
#include "runtime/text/tokenizer.h"

namespace headrace {

inline constexpr const char* kMetaspace = "\u2581";  // LOWER ONE EIGHTH BLOCK: SentencePiece\'s space

// How tokens become text.
struct DecoderParts {
  bool byte_level = false;                                        // tokens use the byte-level alphabet
  bool byte_fallback = false;                                     // <0xNN> is a byte
  std::vector<std::pair<std::string, std::string>> replacements;  // pattern, content; in each token
  std::string strip;       // one character, removed from the start of the text …
  size_t strip_count = 0;  // … at most this often
};

// When a text piece gets a prefix ("▁") beyond the normaliser's: SentencePiece's Metaspace.
enum class PrefixRule { kNever, kFirst, kAlways };

struct TokenizerParts {
  std::string source;              // the file, for errors
  std::vector<std::string> names;  // by id; empty: unused
  std::vector<AddedToken> added;
  BpeDefinition bpe;
  Normalizer normalizer;
  std::vector<SplitRule> splits;
  bool metaspace = false;  // the pre-tokenizer replaces spaces, in the text between added tokens
  PrefixRule prefix_rule = PrefixRule::kNever;
  std::string prefix;
  std::vector<int32_t> before, after;  // the post-processor's tokens around the text
  DecoderParts decoder;
  SpecialNames special_names;
  int32_t bos = -1, eos = -1;
};

struct Tokenizer::Impl {
  explicit Impl(TokenizerParts parts);

  std::string source;
  std::vector<std::string> names;
  std::vector<bool> special;
  std::unordered_map<std::string, int32_t> ids;
  AddedTokens verbatim_added, normalized_added;
  Bpe bpe;
  Normalizer normalizer;
  Splitter splitter;
  bool metaspace;
  PrefixRule prefix_rule;
  std::string prefix;
  std::vector<int32_t> before, after;
  DecoderParts decoder;
  std::vector<std::string> pieces;  // by id: the bytes of the token
  std::vector<bool> is_byte;        // by id: a byte of byte fallback
  SpecialNames special_names;
  int32_t bos, eos;
  mutable ChunkCache chunks;

  std::vector<int32_t> encode(MarkedText text, AddBos add_bos) const;

 private:
  struct Run;
  void encode_fragment(MarkedText fragment, bool is_first, Run* run) const;
  void encode_text(std::string_view text, Run* run) const;
  void encode_words(std::string_view text, Run* run) const;
  void encode_symbols(std::string_view text, Run* run) const;
  void encode_word(std::string_view word, Run* run) const;
};

// Ids index a dense table, so an id may exceed the number of tokens by at most this.
inline constexpr int64_t kMaxIdGap = 65536;

// Checks every merge. Drops merges that would produce a special token from text, and special tokens from the words.
struct NamedMerge {
  std::string_view left, right;
};
void define_merges(const std::vector<NamedMerge>& merges, TokenizerParts* parts,
                   const std::unordered_map<std::string, int32_t>& ids);
// Fills bpe.words and bpe.byte_tokens from names, without special or unused ones.
void define_words(const std::vector<bool>& excluded, TokenizerParts* parts);

}  // namespace headrace
