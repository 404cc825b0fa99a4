#include "runtime/grammar/pattern.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "runtime/base/input_file.h"
#include "runtime/base/utf8.h"
#include "runtime/grammar/json_parts.h"

namespace headrace {
namespace {

constexpr int kMaxGroups = 32;         // within each other
constexpr int32_t kMaxRepeats = 4096;  // of {m,n}

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

CharSet inverted(const CharSet& set) {
  CharSet other;
  other.ascii = ~set.ascii;
  other.others = !set.others;
  return other;
}

bool ends_with_dollar(std::string_view text) {
  if (!text.ends_with('$')) return false;
  size_t slashes = 0;
  while (slashes + 1 < text.size() && text[text.size() - 2 - slashes] == '\\') ++slashes;
  return slashes % 2 == 0;
}

// The set of \d, \w, \s and their opposites. None: another escape.
std::optional<CharSet> class_of(char c) {
  CharSet set;
  switch (c) {
    case 'd':
    case 'D':
      set.add_range('0', '9');
      break;
    case 'w':
    case 'W':
      set.add_range('0', '9');
      set.add_range('a', 'z');
      set.add_range('A', 'Z');
      set.add('_');
      break;
    case 's':
    case 'S':
      for (const char space : std::string_view(" \t\n\r\f\v")) set.add(static_cast<unsigned char>(space));
      break;
    default:
      return std::nullopt;
  }
  return c >= 'a' ? set : inverted(set);
}

// Adds nodes while it reads: each function parses from `at` on and returns what precedes `next`. So that it can know
// `next`, an expression is read from its end: a piece's extent first, then its nodes.
class Pattern {
 public:
  Pattern(Grammar* g, std::string_view text, const std::string& source) : g_(*g), text_(text), source_(source) {}

  int32_t body(int32_t next) {
    const bool from_start = text_.starts_with('^');
    const size_t end = text_.size() - (ends_with_dollar(text_) ? 1 : 0);
    const int32_t any = json_any_char(&g_, kReturnNode);
    const int32_t behind = end < text_.size() ? next : g_.loop(any, 0, -1, next);
    at_ = from_start ? 1 : 0;
    const bool apart = at_ > 0 || end < text_.size();
    const int32_t node = alternatives(end, behind, apart ? Top::kAnchored : Top::kFree);
    if (at_ != end) refuse("has an unmatched )");
    return from_start ? node : g_.loop(any, 0, -1, node);
  }

 private:
  enum class Top { kNo, kFree, kAnchored };
  struct Piece {
    size_t begin, end;  // of the atom
    int32_t min = 1, max = 1;
  };

  int32_t alternatives(size_t end, int32_t next, Top top) {
    std::vector<int32_t> choices = {sequence(end, next)};
    while (at_ < end && text_[at_] == '|') {
      if (top == Top::kAnchored) refuse("has ^ or $ next to alternatives: group them, as in ^(a|b)$");
      ++at_;
      choices.push_back(sequence(end, next));
    }
    return g_.split(choices);
  }

  int32_t sequence(size_t end, int32_t next) {
    std::vector<Piece> pieces;
    while (at_ < end && text_[at_] != '|' && text_[at_] != ')') pieces.push_back(piece(end));
    const size_t behind = at_;
    for (size_t i = pieces.size(); i > 0; --i) {
      const Piece& p = pieces[i - 1];
      at_ = p.begin;
      if (p.min == 1 && p.max == 1) {
        next = atom(p.end, next);
      } else if (p.min == 0 && p.max == 1) {
        next = g_.optional(atom(p.end, next), next);
      } else {
        next = g_.loop(atom(p.end, kReturnNode), p.min, p.max, next);
      }
    }
    at_ = behind;
    return next;
  }

  // The extent of an atom and its repetition.
  Piece piece(size_t end) {
    Piece p{.begin = at_, .end = 0};
    skip_atom(end);
    p.end = at_;
    if (at_ < end) repetition(end, &p);
    return p;
  }

  void skip_atom(size_t end) {
    const char c = text_[at_];
    if (c == '*' || c == '+' || c == '?' || c == '{') refuse("repeats nothing");
    if (c == '^' || c == '$') refuse(str("has ", c, " inside: it is supported only at the ends"));
    if (c == '(') return skip_group(end);
    if (c == '[') return skip_class(end);
    if (c != '\\') {
      at_ += 1;
      while (at_ < end && (static_cast<unsigned char>(text_[at_]) & 0xc0) == 0x80) ++at_;
      return;
    }
    if (at_ + 1 >= end) refuse("ends with a \\");
    const char kind = text_[at_ + 1];
    at_ = std::min(end, at_ + (kind == 'u' ? 6 : kind == 'x' ? 4 : 2));
  }

  void skip_group(size_t end) {
    int depth = 0;
    do {
      if (at_ >= end) refuse("has an unmatched (");
      const char c = text_[at_];
      if (c == '(' && ++depth > kMaxGroups) refuse(str("has more than ", kMaxGroups, " nested groups"));
      if (c == ')') --depth;
      if (c == '[') {
        skip_class(end);
      } else {
        at_ += c == '\\' ? 2 : 1;
      }
    } while (depth > 0);
    at_ = std::min(at_, end);
  }

  void skip_class(size_t end) {
    ++at_;
    while (at_ < end && text_[at_] != ']') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= end) refuse("has an unmatched [");
    ++at_;
  }

  void repetition(size_t end, Piece* p) {
    const char c = text_[at_];
    if (c == '*' || c == '+' || c == '?') {
      p->min = c == '+' ? 1 : 0;
      p->max = c == '?' ? 1 : -1;
      ++at_;
    } else if (c == '{') {
      ++at_;
      p->min = number(end);
      p->max = p->min;
      if (at_ < end && text_[at_] == ',') {
        ++at_;
        p->max = at_ < end && text_[at_] == '}' ? -1 : number(end);
      }
      if (at_ >= end || text_[at_] != '}') refuse("has an unmatched {");
      ++at_;
      if (p->max >= 0 && p->max < p->min) refuse("has a repetition whose maximum is below its minimum");
    } else {
      return;
    }
    if (at_ < end && text_[at_] == '?') ++at_;  // lazy: the texts are the same
    if (at_ < end && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '{')) refuse("repeats a repetition");
  }

  int32_t number(size_t end) {
    int32_t value = 0;
    const size_t begin = at_;
    for (; at_ < end && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = value * 10 + (text_[at_] - '0');
      if (value > kMaxRepeats) refuse(str("repeats more than ", kMaxRepeats, " times"));
    }
    if (at_ == begin) refuse("has a { without a number");
    return value;
  }

  int32_t atom(size_t end, int32_t next) {
    const char c = text_[at_];
    if (c == '(') return group(end, next);
    if (c == '[') return json_char(&g_, bracket(), next);
    CharSet set;
    if (c == '.') {
      set = CharSet::any();
      set.ascii.reset('\n').reset('\r');
    } else if (c == '\\') {
      set = escaped();
    } else {
      set.add(character());
    }
    return json_char(&g_, set, next);
  }

  int32_t group(size_t end, int32_t next) {
    ++at_;
    if (text_.substr(at_).starts_with("?:")) {
      at_ += 2;
    } else if (text_[at_] == '?') {
      refuse("has a group that begins with (?: only (?: is supported, and (?= and (?! directly after ^");
    }
    return alternatives(end - 1, next, Top::kNo);
  }

  CharSet bracket() {
    CharSet set;
    const bool inverse = text_[++at_] == '^';
    if (inverse) ++at_;
    while (text_[at_] != ']') {
      const size_t begin = at_;
      const bool escape = text_[at_] == '\\';
      const CharSet one = escape ? escaped() : single(character());
      const bool range = text_[at_] == '-' && text_[at_ + 1] != ']';
      if (!range) {
        set.ascii |= one.ascii;
        for (const char32_t c : one.named) set.add(c);
        set.others = set.others || one.others;
        continue;
      }
      ++at_;
      const CharSet last = text_[at_] == '\\' ? escaped() : single(character());
      if (one.ascii.count() != 1 || last.ascii.count() != 1) {
        refuse(str("has the range ", text_.substr(begin, at_ - begin), ": only ASCII is supported"));
      }
      set.add_range(only(one), only(last));
    }
    ++at_;
    if (inverse && !set.named.empty()) refuse("excludes a non-ASCII character");
    return inverse ? inverted(set) : set;
  }

  static CharSet single(char32_t c) {
    CharSet set;
    set.add(c);
    return set;
  }
  static char only(const CharSet& set) { return static_cast<char>(set.ascii._Find_first()); }

  CharSet escaped() {
    ++at_;
    const char c = text_[at_++];
    if (const std::optional<CharSet> named = class_of(c)) return *named;
    constexpr std::string_view kNames = "tnrfv", kControls = "\t\n\r\f\v";
    if (const size_t at = kNames.find(c); at != std::string_view::npos) {
      return single(static_cast<unsigned char>(kControls[at]));
    }
    if (c == 'u' || c == 'x') return single(hex(c == 'u' ? 4 : 2));
    const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (word || static_cast<unsigned char>(c) >= 128) refuse(str("has \\", c, ", which is not supported"));
    return single(static_cast<unsigned char>(c));
  }

  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const std::optional<int> digit = at_ < text_.size() ? hex_digit(text_[at_]) : std::nullopt;
      if (!digit) refuse("has an escape with too few hexadecimal digits");
      value = value * 16 + static_cast<char32_t>(*digit);
    }
    if (value >= 0xd800 && value < 0xe000) refuse("has half of a surrogate pair");
    return value;
  }

  char32_t character() {
    const auto byte = [&] { return static_cast<unsigned char>(text_[at_]); };
    const unsigned char first = byte();
    ++at_;
    if (first < 0x80) return first;
    char32_t value = first < 0xe0 ? first & 0x1f : first < 0xf0 ? first & 0x0f : first & 0x07;
    for (; at_ < text_.size() && (byte() & 0xc0) == 0x80; ++at_) value = value << 6 | (byte() & 0x3f);
    return value;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw_error(ExitCode::kBadInput, source_, str("has the pattern \"", printable(text_), "\", which ", why));
  }

  Grammar& g_;
  const std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
};

// Behind the group that begins at `at`; npos: it has no end.
size_t group_end(std::string_view text, size_t at) {
  int depth = 0;
  bool in_class = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\\') ++at;
    if (c == '[' || c == ']') in_class = c == '[';
    if (in_class) continue;
    if (c == '(') ++depth;
    if (c == ')' && --depth == 0) return at + 1;
  }
  return std::string_view::npos;
}

}  // namespace

int32_t pattern_body(Grammar* g, std::string_view pattern, const std::string& source, int32_t next) {
  return Pattern(g, pattern, source).body(next);
}

PatternParts pattern_parts(std::string_view pattern) {
  PatternParts parts;
  while (pattern.starts_with("^(?=") || pattern.starts_with("^(?!")) {
    const size_t end = group_end(pattern, 1);
    if (end == std::string_view::npos) break;  // pattern_body() refuses it
    std::string_view inside = pattern.substr(4, end - 5);
    if (inside.starts_with('^')) inside.remove_prefix(1);
    const bool whole = ends_with_dollar(inside);
    if (whole) inside.remove_suffix(1);
    (pattern[3] == '=' ? parts.with : parts.without).push_back(str("^(?:", inside, ")", whole ? "$" : ""));
    parts.rest = str("^", pattern.substr(end));
    pattern = parts.rest;
  }
  parts.rest = std::string(pattern);
  return parts;
}

}  // namespace headrace
