#include "runtime/text/tokenizer.h"

#include <array>
#include <functional>
#include <optional>
#include <span>

#include "cache/base.h"
#include "runtime/base/utf8.h"
#include "runtime/text/tokenizer_impl.h"

namespace headrace {

namespace {

constexpr size_t kMaxCachedWord = 128, kMaxCachedWords = 65536;
constexpr size_t kChunkBytes = 512;

// The byte-level alphabet of GPT-2: each of the 256 bytes is written in the vocabulary as one printable character.
// Bytes that are printable in Latin-1 keep their code point; the others get code points from U+0100 on, in order.
struct Alphabet {
  std::array<int16_t, 512> bytes;  // by code point; -1: not in the alphabet

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t code_point = prints ? static_cast<char32_t>(byte) : next++;
      bytes[code_point] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

// The bytes of a vocabulary entry; false if it has a character outside the alphabet (an added token, for example).
bool byte_level_bytes(std::string_view token, std::string* bytes) {
  bytes->clear();
  while (!token.empty()) {
    const Utf8Unit unit = next_utf8(token);
    if (unit.kind != Utf8Unit::kCharacter || unit.code_point >= alphabet().bytes.size()) return false;
    const int16_t byte = alphabet().bytes[unit.code_point];
    if (byte < 0) return false;
    bytes->push_back(static_cast<char>(byte));
    token.remove_prefix(unit.length);
  }
  return true;
}

int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

// "<0x0A>" -> 10; -1 for anything else.
int byte_of(std::string_view name) {
  if (name.size() != 6 || name.substr(0, 3) != "<0x" || name[5] != '>') return -1;
  const int high = hex_digit(name[3]), low = hex_digit(name[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string replaced(std::string text, const std::pair<std::string, std::string>& rule) {
  for (size_t at = 0; (at = text.find(rule.first, at)) != std::string::npos; at += rule.second.size())
    text.replace(at, rule.first.size(), rule.second);
  return text;
}

std::string decoded_piece(const std::string& name, const DecoderParts& decoder) {
  std::string piece = name;
  if (decoder.byte_level && !byte_level_bytes(name, &piece)) piece = name;
  for (const auto& rule : decoder.replacements) piece = replaced(std::move(piece), rule);
  return piece;
}

void append_part(std::string_view text, SpecialTokens special, MarkedText* out) {
  out->text.reserve(out->text.size() + text.size());
  append_valid_utf8(text, &out->text);
  out->verbatim.resize(out->text.size(), special == SpecialTokens::kAsText ? 1 : 0);
}

struct TextHash : std::hash<std::string_view> {
  using is_transparent = void;
};

}  // namespace

void define_words(const std::vector<bool>& excluded, TokenizerParts* parts) {
  parts->bpe.words.reserve(parts->names.size());
  for (size_t i = 0; i < parts->names.size(); ++i) {
    const std::string& name = parts->names[i];
    if (name.empty()) continue;
    const int byte = byte_of(name);
    if (byte >= 0) parts->bpe.byte_tokens[static_cast<size_t>(byte)] = static_cast<int32_t>(i);
    if (excluded[i]) continue;
    std::string word = name;
    if (parts->bpe.byte_level && !byte_level_bytes(name, &word)) continue;
    parts->bpe.words[word] = static_cast<int32_t>(i);
  }
}

void define_merges(const std::vector<NamedMerge>& merges, TokenizerParts* parts,
                   const std::unordered_map<std::string, int32_t>& ids) {
  std::vector<bool> special(parts->names.size());
  for (const AddedToken& token : parts->added) special[static_cast<size_t>(token.id)] = token.special;
  std::unordered_map<uint64_t, size_t> seen;
  seen.reserve(merges.size());
  parts->bpe.merges.reserve(merges.size());
  const auto find = [&](const std::string& name) {
    const auto found = ids.find(name);
    return found == ids.end() ? -1 : found->second;
  };
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string left(merges[i].left), right(merges[i].right);
    const auto refuse = [&](const std::string& why) {
      throw_error(ExitCode::kBadInput, parts->source, str("merge ", i, " ('", left, "' + '", right, "') ", why));
    };
    if (left.empty() || right.empty()) refuse("has an empty part");
    const int32_t left_id = find(left), right_id = find(right), result = find(left + right);
    if (left_id < 0) refuse(str("names '", left, "', which is not in the vocabulary"));
    if (right_id < 0) refuse(str("names '", right, "', which is not in the vocabulary"));
    if (result < 0) refuse(str("makes '", left + right, "', which is not in the vocabulary"));
    const uint64_t key = static_cast<uint64_t>(left_id) << 32 | static_cast<uint32_t>(right_id);
    const auto [first, is_new] = seen.try_emplace(key, i);
    if (!is_new) refuse(str("repeats merge ", first->second));
    if (special[static_cast<size_t>(result)]) continue;
    parts->bpe.merges.push_back({left_id, right_id, result, static_cast<uint32_t>(i)});
  }
}

Tokenizer::Impl::Impl(TokenizerParts parts)
    : source(std::move(parts.source)),
      names(std::move(parts.names)),
      special(names.size()),
      bpe(std::move(parts.bpe)),
      normalizer(std::move(parts.normalizer)),
      splitter(std::move(parts.splits)),
      metaspace(parts.metaspace),
      prefix_rule(parts.prefix_rule),
      prefix(std::move(parts.prefix)),
      before(std::move(parts.before)),
      after(std::move(parts.after)),
      decoder(std::move(parts.decoder)),
      is_byte(names.size()),
      special_names(std::move(parts.special_names)),
      bos(parts.bos),
      eos(parts.eos) {
  ids.reserve(names.size());
  pieces.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty()) ids.emplace(names[i], static_cast<int32_t>(i));
    const int byte = decoder.byte_fallback ? byte_of(names[i]) : -1;
    is_byte[i] = byte >= 0;
    pieces.push_back(byte >= 0 ? std::string(1, static_cast<char>(byte)) : decoded_piece(names[i], decoder));
  }
  for (const AddedToken& token : parts.added) {
    special[static_cast<size_t>(token.id)] = token.special;
    if (!token.normalized) {
      verbatim_added.add(token, token.content);
    } else {
      const MarkedText content{token.content, std::string(token.content.size(), 0)};
      normalized_added.add(token, normalizer.apply(content).text);
    }
  }
}

// Working memory of one call. Words repeat, so their ids are looked up before they are merged again.
struct Tokenizer::Impl::Run {
  struct Span {
    size_t begin, end;  // in `ids`: the first occurrence of this word
  };
  std::vector<int32_t> ids;
  std::unordered_map<std::string, Span, TextHash, std::equal_to<>> cache;
  Bpe::Scratch bpe;
  Regex::Scratch regex;
};

void Tokenizer::Impl::encode_word(std::string_view word, Run* run) const {
  if (word.size() > kMaxCachedWord) {
    bpe.encode(word, &run->bpe, &run->ids);
    return;
  }
  const auto cached = run->cache.find(word);
  if (cached != run->cache.end()) {
    for (size_t i = cached->second.begin; i < cached->second.end; ++i) run->ids.push_back(run->ids[i]);
    return;
  }
  const size_t begin = run->ids.size();
  bpe.encode(word, &run->bpe, &run->ids);
  if (run->cache.size() == kMaxCachedWords) run->cache.clear();
  run->cache.try_emplace(std::string(word), Run::Span{begin, run->ids.size()});
}

// Without a pre-tokenizer a whole document is one word, and with one a long line may be. It is cut where no token can
// span, which changes only time and memory.
void Tokenizer::Impl::encode_symbols(std::string_view text, Run* run) const {
  size_t begin = 0;
  char32_t previous = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = bpe.byte_level() ? Utf8Unit{Utf8Unit::kCharacter, 1, static_cast<uint8_t>(text[at])}
                                           : next_utf8(text.substr(at));
    if (at > begin && !bpe.may_join(previous, unit.code_point)) {
      encode_word(text.substr(begin, at - begin), run);
      begin = at;
    }
    previous = unit.code_point;
    at += unit.length;
  }
  encode_word(text.substr(begin), run);
}

void Tokenizer::Impl::encode_words(std::string_view text, Run* run) const {
  splitter.split(text, &run->regex, [&](std::string_view word) {
    if (bpe.byte_level() && word.size() <= kMaxCachedWord) {
      encode_word(word, run);
    } else {
      encode_symbols(word, run);
    }
  });
}

// In chunks, so that a text that begins as an earlier one is looked up as far as they are alike.
void Tokenizer::Impl::encode_text(std::string_view text, Run* run) const {
  while (const std::optional<size_t> cut = splitter.cut(text, kChunkBytes)) {
    const std::string_view chunk = text.substr(0, *cut);
    if (!chunks.append(chunk, &run->ids)) {
      const size_t begin = run->ids.size();
      encode_words(chunk, run);
      chunks.add(chunk, std::span(run->ids).subspan(begin));
    }
    text.remove_prefix(*cut);
  }
  encode_words(text, run);
}

void Tokenizer::Impl::encode_fragment(MarkedText fragment, bool is_first, Run* run) const {
  fragment = normalizer.apply(std::move(fragment));
  for (const AddedTokens::Piece& piece : normalized_added.split(fragment)) {
    if (piece.id >= 0) {
      run->ids.push_back(piece.id);
      is_first = false;
      continue;
    }
    std::string_view text = std::string_view(fragment.text).substr(piece.begin, piece.end - piece.begin);
    std::string spaced;
    if (metaspace) text = spaced = replaced(std::string(text), {" ", kMetaspace});
    const bool wants_prefix = prefix_rule == PrefixRule::kAlways || (prefix_rule == PrefixRule::kFirst && is_first);
    if (wants_prefix && !text.starts_with(prefix)) {
      encode_text(prefix + std::string(text), run);
    } else {
      encode_text(text, run);
    }
    is_first = false;
  }
}

std::vector<int32_t> Tokenizer::Impl::encode(MarkedText text, AddBos add_bos) const {
  Run run;
  if (add_bos == AddBos::kYes) run.ids = before;
  bool is_first = true;
  for (const AddedTokens::Piece& piece : verbatim_added.split(text)) {
    if (piece.id >= 0) {
      run.ids.push_back(piece.id);
    } else if (piece.begin == 0 && piece.end == text.text.size()) {  // the only one
      encode_fragment(std::move(text), is_first, &run);
      break;
    } else {
      encode_fragment(text.substr(piece.begin, piece.end), is_first, &run);
    }
    is_first = false;
  }
  if (add_bos == AddBos::kYes) run.ids.insert(run.ids.end(), after.begin(), after.end());
  return std::move(run.ids);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, AddBos add_bos, SpecialTokens special) const {
  MarkedText marked;
  append_part(text, special, &marked);
  return impl_->encode(std::move(marked), add_bos);
}

std::vector<int32_t> Tokenizer::encode(const std::vector<TextPart>& parts, AddBos add_bos) const {
  MarkedText all;
  for (const TextPart& part : parts) append_part(part.text, part.special, &all);
  return impl_->encode(std::move(all), add_bos);
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids, SpecialTokens special) const {
  StreamingDecoder decoder(*this, special);
  std::string text;
  for (int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

int32_t Tokenizer::size() const { return static_cast<int32_t>(impl_->names.size()); }

int32_t Tokenizer::find(std::string_view token) const {
  const auto found = impl_->ids.find(std::string(token));
  return found == impl_->ids.end() ? -1 : found->second;
}

const std::string& Tokenizer::token_name(int32_t id) const {
  static const std::string kNoName;
  return id >= 0 && id < size() ? impl_->names[static_cast<size_t>(id)] : kNoName;
}

std::string Tokenizer::token_bytes(int32_t id) const {
  return id >= 0 && id < size() ? impl_->pieces[static_cast<size_t>(id)] : "";
}

uint64_t Tokenizer::longest_token_bytes() const {
  size_t longest = 0;
  for (const std::string& piece : impl_->pieces) longest = std::max(longest, piece.size());
  return longest;
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < size() && impl_->special[static_cast<size_t>(id)];
}

const SpecialNames& Tokenizer::special_names() const { return impl_->special_names; }
int32_t Tokenizer::bos() const { return impl_->bos; }
int32_t Tokenizer::eos() const { return impl_->eos; }

}  // namespace headrace
