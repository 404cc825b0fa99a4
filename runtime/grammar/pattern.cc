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
    const size_t end = text_.size() - (ends_with_dollar() ? 1 : 0);
    const int32_t any = json_any_char(&g_, kReturnNode);
    const int32_t behind = end < text_.size() ? next : g_.loop(any, 0, -1, next);
    at_ = from_start ? 1 : 0;
    const bool apart = at_ > 0 || end < text_.size();
    const int32_t node = alternatives(end, behind, apart ? Top::kAnchored : Top::kFree);
    if (at_ != end) refuse("has a ) too many");
    return from_start ? node : g_.loop(any, 0, -1, node);
  }

 private:
  enum class Top { kNo, kFree, kAnchored };
  struct Piece {
    size_t begin, end;  // of the atom
    int32_t min = 1, max = 1;
  };

  bool ends_with_dollar() const {
    if (!text_.ends_with('$')) return false;
    size_t slashes = 0;
    while (slashes + 1 < text_.size() && text_[text_.size() - 2 - slashes] == '\\') ++slashes;
    return slashes % 2 == 0;
  }

  int32_t alternatives(size_t end, int32_t next, Top top) {
    std::vector<int32_t> choices = {sequence(end, next)};
    while (at_ < end && text_[at_] == '|') {
      if (top == Top::kAnchored) refuse("has ^ or $ beside alternatives: put these into a group, ^(a|b)$");
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
    if (c == '^' || c == '$') refuse(str("has ", c, " inside: only at its ends it is supported"));
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
      if (at_ >= end) refuse("has a ( without )");
      const char c = text_[at_];
      if (c == '(' && ++depth > kMaxGroups) refuse(str("has more than ", kMaxGroups, " groups within each other"));
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
    if (at_ >= end) refuse("has a [ without ]");
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
      if (at_ >= end || text_[at_] != '}') refuse("has a { without }");
      ++at_;
      if (p->max >= 0 && p->max < p->min) refuse("has a repetition whose end is before its begin");
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
      refuse("has a group that begins with (?, of which only (?: is supported");
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
    if (inverse && !set.named.empty()) refuse("excludes a character beyond ASCII");
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

struct Format {
  std::string_view name, pattern;
};
// A date has its month's days; 29 February is left out, because it depends on the year.
#define HEADRACE_DATE \
  "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define HEADRACE_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define HEADRACE_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define HEADRACE_PATH "[a-zA-Z0-9._~!$&'()*+,;=:@-]"
#define HEADRACE_LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
constexpr auto kFormats = std::to_array<Format>({
    {"date", "^" HEADRACE_DATE "$"},
    {"time", "^" HEADRACE_TIME "$"},
    {"date-time", "^" HEADRACE_DATE "T" HEADRACE_TIME "$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^" HEADRACE_BYTE "(\\." HEADRACE_BYTE "){3}$"},
    {"ipv6", "^[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){7}$"},
    {"hostname", "^" HEADRACE_LABEL "(\\." HEADRACE_LABEL "){0,3}$"},
    {"email", "^[a-zA-Z0-9_+-]+(\\.[a-zA-Z0-9_+-]+){0,8}@" HEADRACE_LABEL "(\\." HEADRACE_LABEL "){1,3}$"},
    {"uri",
     "^[a-z][a-z0-9+.-]{1,15}:(//" HEADRACE_LABEL "(\\." HEADRACE_LABEL "){0,3}(:[1-9][0-9]{0,4})?|" HEADRACE_PATH
     "+)(/" HEADRACE_PATH "*)*(\\?[a-zA-Z0-9._~!$&'()*+,;=:@/-]*)?(#[a-zA-Z0-9._~!$&'()*+,;=:@/-]*)?$"},
});
#undef HEADRACE_DATE
#undef HEADRACE_TIME
#undef HEADRACE_BYTE
#undef HEADRACE_PATH
#undef HEADRACE_LABEL

}  // namespace

int32_t pattern_body(Grammar* g, std::string_view pattern, const std::string& source, int32_t next) {
  return Pattern(g, pattern, source).body(next);
}

std::string_view format_pattern(std::string_view format) {
  const auto found =
      std::find_if(kFormats.begin(), kFormats.end(), [format](const Format& f) { return f.name == format; });
  return found == kFormats.end() ? std::string_view() : found->pattern;
}

std::string format_names() {
  std::string names;
  for (const Format& format : kFormats) names += (names.empty() ? "" : ", ") + std::string(format.name);
  return names;
}

}  // namespace headrace
