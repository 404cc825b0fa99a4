// Text to token ids and back: byte-level BPE (GPT-2, SmolLM, Llama-3, Qwen2 pre-tokenizers) and SentencePiece-style BPE
// with byte fallback (Llama-2). Immutable once made; every const method may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/vocabulary.h"

namespace headrace {

enum class SpecialTokens { kParse, kAsText };  // "<|im_end|>" in the text: the token, or text
enum class AddBos { kYes, kNo };  // whether to run the tokenizer's post-processor (a leading <s>, for example)

// A prompt in parts: text of a template (kParse) and of a user (kAsText). The parts are one text: words may span them,
// special tokens may not.
struct TextPart {
  std::string text;
  SpecialTokens special = SpecialTokens::kAsText;
};

// What the model's files call their special tokens, for chat templates: ("bos_token", "<s>"). A name that they do not
// give is not listed.
using SpecialNames = std::vector<std::pair<std::string, std::string>>;

constexpr uint64_t kMaxTokenizerBytes = uint64_t{1} << 30;  // limit for a tokenizer.json

class Tokenizer {
 public:
  // `json`: the content of tokenizer.json, which names no special token; `source` is the file in errors. Throws
  // Error(kBadInput).
  static Tokenizer from_json(std::string_view json, const std::string& source, SpecialNames names = {});
  static Tokenizer from_vocabulary(const Vocabulary& vocabulary);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Bytes that are not UTF-8 count as U+FFFD. kAsText: no text becomes a special token or another added token that
  // looks like markup ("<think>"); ordinary added tokens (runs of spaces, for example) are still matched.
  std::vector<int32_t> encode(std::string_view text, AddBos add_bos, SpecialTokens special) const;
  std::vector<int32_t> encode(const std::vector<TextPart>& parts, AddBos add_bos) const;
  // The text of these ids: like the reference's decode(skip_special_tokens=False) (kAsText), or without special tokens
  // (kParse).
  std::string decode(const std::vector<int32_t>& ids, SpecialTokens special = SpecialTokens::kAsText) const;

  int32_t size() const;                        // ids are [0, size())
  int32_t find(std::string_view token) const;  // the id of a token by its exact name, or -1
  const std::string& token_name(int32_t id) const;
  // What the id adds to a text, bytes of a part of a character included; the name of a special token.
  std::string token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  uint64_t longest_token_bytes() const;  // of the text of one token
  const SpecialNames& special_names() const;
  // The tokens that begin and end a text; -1: none. The names decide, else what the tokenizer adds to a text.
  int32_t bos() const;
  int32_t eos() const;

 private:
  friend class StreamingDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Decodes one token at a time and never emits half a UTF-8 character. Borrows the tokenizer, which must outlive it.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::kParse);
  ~StreamingDecoder();
  StreamingDecoder(StreamingDecoder&&) noexcept;
  std::string push(int32_t id);  // returns the text that is now complete; may be empty
  std::string finish();          // returns the rest, invalid bytes as U+FFFD

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
