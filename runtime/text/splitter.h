// Splits normalised text into the words for BPE. A word is a view into the text. Immutable; any thread, each with a
// separate Scratch.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/regex.h"

namespace headrace {

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Qwen3.5: combining marks are part of words, and no punctuation.
inline constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Seed-OSS and Seed-Coder, as their files have it: with the line ends themselves. Punctuation takes no line ends along.
inline constexpr std::string_view kSeedCoderPattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|"
    "\\s+(?!\\S)|\\s+";

// Mistral's tekken: words also split before a capital letter, so that "camelCase" is two; digits are single.
inline constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// o200k (gpt-oss): as tekken, but contractions belong to their word, and digits come in threes.
inline constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Gemma 4: lines, and the line ends between them.
inline constexpr std::string_view kLinesPattern = R"([^\n]+|\n+)";

// What a pattern's matches, and the text between them, become (the reference's SplitDelimiterBehavior).
struct SplitRule {
  enum Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  Regex pattern;
  Behavior behavior = kIsolated;
  bool invert = false;  // the text between the matches counts as the matches
};

class Splitter {
 public:
  // The next rule splits each piece further and cannot see beyond it.
  explicit Splitter(std::vector<SplitRule> rules = {});

  using Emit = std::function<void(std::string_view)>;
  void split(std::string_view text, Regex::Scratch* scratch, const Emit& emit) const {
    split_by(0, text, scratch, emit);
  }

  // The end of a chunk of at least `least` bytes at the beginning of the text: the words of the text are those of the
  // chunk and those of the rest, whatever the rest is. None: there is no such place, or the rules are not known.
  std::optional<size_t> cut(std::string_view text, size_t least) const;

 private:
  void split_by(size_t index, std::string_view text, Regex::Scratch* scratch, const Emit& emit) const;

  std::vector<SplitRule> rules_;
  bool known_;  // all rules
};

}  // namespace headrace
