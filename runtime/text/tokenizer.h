// Text to token ids and back: byte-level BPE (GPT-2, SmolLM, Llama-3, Qwen2 pre-tokenizers) and SentencePiece-style BPE
// with byte fallback (Llama-2). Immutable once made; every const method may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/vocabulary.h"

namespace headrace {

enum class SpecialTokens { kParse, kAsText };  // does "<|im_end|>" in the text become the token, or stay text?
enum class AddBos { kYes, kNo };               // run the tokenizer's own post-processor (a leading <s>, say)

// A prompt in parts: what a template wrote (kParse) and what a user wrote (kAsText). The parts are one text: words may
// begin in one and end in the next; only special tokens may not.
struct TextPart {
  std::string text;
  SpecialTokens special = SpecialTokens::kAsText;
};

constexpr uint64_t kMaxTokenizerBytes = uint64_t{1} << 30;  // of a tokenizer.json that is read at all

class Tokenizer {
 public:
  // tokenizer.json's content; `source` names the file in errors. Throws Error(kBadInput).
  static Tokenizer from_json(std::string_view json, const std::string& source);
  static Tokenizer from_vocabulary(const Vocabulary& vocabulary);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Bytes that are not UTF-8 count as U+FFFD. kAsText: no text becomes a special token, nor other added tokens that
  // look like markup ("<think>"); ordinary added tokens (runs of spaces, say) are found either way.
  std::vector<int32_t> encode(std::string_view text, AddBos add_bos, SpecialTokens special) const;
  std::vector<int32_t> encode(const std::vector<TextPart>& parts, AddBos add_bos) const;
  // The whole text of these ids, as the reference implementation's decode(skip_special_tokens=False) gives it
  // (kAsText), or with special tokens left out (kParse).
  std::string decode(const std::vector<int32_t>& ids, SpecialTokens special = SpecialTokens::kAsText) const;

  int32_t size() const;                        // ids are [0, size())
  int32_t find(std::string_view token) const;  // the id of a token by its exact name, or -1
  const std::string& token_name(int32_t id) const;
  bool is_special(int32_t id) const;
  uint64_t longest_token_bytes() const;  // of the text that one token can stand for
  int32_t bos() const;                   // -1 if there is none
  int32_t eos() const;

 private:
  friend class StreamingDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Detokenises one token at a time and never emits half a UTF-8 character. Borrowed tokenizer must outlive it.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::kParse);
  ~StreamingDecoder();
  StreamingDecoder(StreamingDecoder&&) noexcept;
  std::string push(int32_t id);  // the text that is now certain; may be empty
  std::string finish();          // what was held back, invalid bytes as U+FFFD

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
