// Reads a GGUF file's vocabulary. Byte-level families name their pre-tokenizer. SentencePiece families have a score per
// token instead of a list of merges: of all neighbours whose concatenation is a token, the pair with the best score
// merges first. Gemma 4's has the same symbols, and merges.
#include <algorithm>
#include <cmath>
#include <functional>

#include "cache/base.h"
#include "runtime/base/utf8.h"
#include "runtime/text/tokenizer_impl.h"

namespace headrace {

namespace {

constexpr int32_t kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

struct PreTokenizer {
  const char* name;
  std::vector<std::string_view> patterns;
  bool ignore_merges = false, add_bos = false, nfc = false;
};

const std::vector<PreTokenizer>& pre_tokenizers() {
  static const std::vector<PreTokenizer> list = {
      {"gpt-2", {kGpt2Pattern}},
      {"gpt2", {kGpt2Pattern}},
      {"default", {kGpt2Pattern}},
      {"smollm", {"\\p{N}", kGpt2Pattern}},
      {"llama-bpe", {kLlama3Pattern}, true, true},
      {"llama3", {kLlama3Pattern}, true, true},
      {"llama-v3", {kLlama3Pattern}, true, true},
      {"dbrx", {kLlama3Pattern}},
      {"tekken", {kTekkenPattern}, true, true},
      {"gpt-4o", {kO200kPattern}},
      {"seed-coder", {kSeedCoderPattern}},
      {"qwen2", {kQwen2Pattern}, false, false, true},
      {"qwen35", {kQwen35Pattern}},  // without NFC, as in llama.cpp
      {"deepseek-r1-qwen", {kQwen2Pattern}, false, false, true},
  };
  return list;
}

class VocabularyLoader {
 public:
  explicit VocabularyLoader(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {
    parts_.source = vocabulary.source;
  }

  TokenizerParts load() {
    check_sizes();
    read_tokens();
    if (vocabulary_.model == "gpt2") {
      read_byte_level();
    } else if (vocabulary_.model == "llama") {
      read_sentencepiece();
    } else if (vocabulary_.model == "gemma4") {
      read_gemma4();
    } else {
      refuse(str("tokenizer.ggml.model '", vocabulary_.model, "' is not supported"),
             "supported are gpt2, llama and gemma4");
    }
    return std::move(parts_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& hint = "") const {
    throw_error(ExitCode::kBadInput, vocabulary_.source, what, hint);
  }
  int32_t type(size_t id) const { return vocabulary_.types[id]; }
  int32_t checked(int32_t id, const char* key) const;
  void check_sizes() const;
  void read_tokens();
  void read_byte_level();
  void read_sentencepiece();
  void read_gemma4();
  void add_listed_merges();
  void add_characters();
  void add_scored_merges();
  void add_ends(bool bos_by_default);

  const Vocabulary& vocabulary_;
  TokenizerParts parts_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<bool> excluded_;  // never produced from text
};

int32_t VocabularyLoader::checked(int32_t id, const char* key) const {
  if (id != -1 && (id < 0 || static_cast<size_t>(id) >= vocabulary_.tokens.size()))
    refuse(
        str("tokenizer.ggml.", key, "_token_id is ", id, ", out of range for ", vocabulary_.tokens.size(), " tokens"));
  return id;
}

void VocabularyLoader::check_sizes() const {
  const size_t count = vocabulary_.tokens.size();
  if (count == 0) refuse("tokenizer.ggml.tokens is empty");
  if (count >= INT32_MAX) refuse(str("tokenizer.ggml.tokens has ", count, " entries"));
  if (vocabulary_.types.size() != count)
    refuse(str("tokenizer.ggml.token_type has ", vocabulary_.types.size(), " entries for ", count, " tokens"));
  if (vocabulary_.model == "llama" && vocabulary_.scores.size() != count)
    refuse(str("tokenizer.ggml.scores has ", vocabulary_.scores.size(), " entries for ", count, " tokens"));
  if (vocabulary_.model != "llama" && vocabulary_.merges.empty())
    refuse("tokenizer.ggml.merges is missing: without merges every character would be a token of its own",
           "convert the model again");
}

void VocabularyLoader::read_tokens() {
  parts_.names = vocabulary_.tokens;
  excluded_.resize(parts_.names.size());
  ids_.reserve(parts_.names.size());
  for (size_t i = 0; i < parts_.names.size(); ++i) {
    const std::string& name = parts_.names[i];
    const int32_t kind = type(i);
    if (kind < 0 || kind > kByte) refuse(str("token ", i, " has type ", kind));
    if (!is_utf8(name)) refuse(str("token ", i, " is not UTF-8"));
    if (name.empty() || kind == kUnused) {
      excluded_[i] = true;
      continue;
    }
    const auto [first, is_new] = ids_.try_emplace(name, static_cast<int32_t>(i));
    if (!is_new) refuse(str("tokens ", first->second, " and ", i, " are both '", name, "'"));
    excluded_[i] = kind == kControl || kind == kUnknown || kind == kByte;
    if (kind != kControl && kind != kUnknown && kind != kUserDefined) continue;
    AddedToken token;
    token.id = static_cast<int32_t>(i);
    token.content = name;
    token.special = kind != kUserDefined;
    parts_.added.push_back(std::move(token));
  }
}

void VocabularyLoader::add_ends(bool bos_by_default) {
  parts_.bos = checked(vocabulary_.bos, "bos");
  parts_.eos = checked(vocabulary_.eos, "eos");
  checked(vocabulary_.eot, "eot");
  const auto add_name = [&](const char* name, int32_t id) {
    if (id >= 0) parts_.special_names.emplace_back(name, parts_.names[static_cast<size_t>(id)]);
  };
  add_name("bos_token", parts_.bos);
  add_name("eos_token", parts_.eos);
  add_name("unk_token", checked(vocabulary_.unk, "unknown"));
  add_name("pad_token", checked(vocabulary_.pad, "padding"));
  if (vocabulary_.add_bos.value_or(bos_by_default) && parts_.bos >= 0) parts_.before = {parts_.bos};
  if (vocabulary_.add_eos.value_or(false) && parts_.eos >= 0) parts_.after = {parts_.eos};
}

void VocabularyLoader::read_byte_level() {
  const auto& list = pre_tokenizers();
  const auto pre =
      std::find_if(list.begin(), list.end(), [&](const PreTokenizer& p) { return p.name == vocabulary_.pre; });
  if (vocabulary_.pre.empty())
    refuse("tokenizer.ggml.pre is missing: it says how text is cut into words", "convert the model again");
  if (pre == list.end()) refuse(str("tokenizer.ggml.pre '", vocabulary_.pre, "' is not supported"));
  parts_.bpe.byte_level = parts_.decoder.byte_level = true;
  parts_.bpe.ignore_merges = pre->ignore_merges;
  for (std::string_view pattern : pre->patterns)
    parts_.splits.push_back({Regex(pattern, Regex::Syntax::kPattern, vocabulary_.source)});
  if (pre->nfc) parts_.normalizer = Normalizer({{NormalizerStep::kNfc, "", ""}});
  if (vocabulary_.add_space_prefix.value_or(false)) {
    parts_.prefix_rule = PrefixRule::kAlways;
    parts_.prefix = ' ';
  }
  define_words(excluded_, &parts_);
  add_listed_merges();
  add_ends(pre->add_bos);
}

void VocabularyLoader::add_listed_merges() {
  std::vector<NamedMerge> merges;
  for (size_t i = 0; i < vocabulary_.merges.size(); ++i) {
    const std::string_view text = vocabulary_.merges[i];
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      refuse(str("merge ", i, " is '", text, "', not two tokens with a space between"));
    merges.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  define_merges(merges, &parts_, ids_);
}

void VocabularyLoader::add_scored_merges() {
  std::vector<float> scores = vocabulary_.scores;
  for (size_t i = 0; i < scores.size(); ++i)
    if (!std::isfinite(scores[i])) refuse(str("the score of token ", i, " is ", scores[i]));
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  const auto& words = parts_.bpe.words;
  for (const auto& [word, id] : words) {
    const float score = vocabulary_.scores[static_cast<size_t>(id)];
    const auto place = std::lower_bound(scores.begin(), scores.end(), score, std::greater<>());
    for (size_t cut = utf8_length(word[0]); cut < word.size(); cut += utf8_length(word[cut])) {
      const auto left = words.find(word.substr(0, cut)), right = words.find(word.substr(cut));
      if (left == words.end() || right == words.end()) continue;
      parts_.bpe.merges.push_back({left->second, right->second, id, static_cast<uint32_t>(place - scores.begin())});
    }
  }
}

// Characters, with bytes for those without a token.
void VocabularyLoader::add_characters() {
  parts_.bpe.byte_fallback = parts_.decoder.byte_fallback = true;
  parts_.bpe.fuse_unk = true;
  parts_.bpe.unk = checked(vocabulary_.unk, "unknown");
  define_words(excluded_, &parts_);
}

// Nothing merges across the end of a line; a run of line ends that is a token is taken as a whole.
void VocabularyLoader::read_gemma4() {
  add_characters();
  parts_.bpe.whole_line_ends = true;
  add_listed_merges();
  parts_.splits.push_back({Regex(kLinesPattern, Regex::Syntax::kPattern, vocabulary_.source)});
  parts_.normalizer = Normalizer({{NormalizerStep::kReplace, " ", kMetaspace}});
  parts_.decoder.replacements = {{kMetaspace, " "}};
  add_ends(true);
  if (parts_.bos >= 0) parts_.before = {parts_.bos};  // whatever add_bos_token says
}

void VocabularyLoader::read_sentencepiece() {
  add_characters();
  add_scored_merges();
  std::vector<NormalizerStep> steps = {{NormalizerStep::kReplace, " ", kMetaspace}};
  parts_.decoder.replacements = {{kMetaspace, " "}};
  if (vocabulary_.add_space_prefix.value_or(true)) {
    steps.insert(steps.begin(), {NormalizerStep::kPrepend, "", kMetaspace});
    parts_.decoder.strip = ' ';
    parts_.decoder.strip_count = 1;
  }
  parts_.normalizer = Normalizer(std::move(steps));
  add_ends(true);
}

}  // namespace

Tokenizer Tokenizer::from_vocabulary(const Vocabulary& vocabulary) {
  return Tokenizer(std::make_unique<Impl>(VocabularyLoader(vocabulary).load()));
}

}  // namespace headrace
