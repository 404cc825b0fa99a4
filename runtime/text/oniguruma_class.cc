#include "runtime/text/oniguruma_class.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cache/base.h"
#include "runtime/base/utf8.h"

namespace headrace::oniguruma {
namespace {

constexpr const char* kHex = "0-9A-Fa-f";

std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_') out.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c);
  return out;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// At least `least`, at most `most` digits of base 8 or 16.
char32_t take_digits(Reader* reader, int base, int least, int most, const char* what) {
  char32_t value = 0;
  int count = 0;
  for (; count < most && !reader->done(); ++count, ++reader->at) {
    const int digit = hex_digit(reader->text[reader->at]);
    if (digit < 0 || digit >= base) break;
    value = value * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
  }
  if (count < least) reader->fail(what);
  return value;
}

void take_property(Reader* reader, Set* set, bool* cased) {
  std::string_view name;
  if (reader->take("{")) {
    if (reader->take("^")) set->negated = !set->negated;
    const size_t end = reader->text.find('}', reader->at);
    if (end == std::string_view::npos) reader->fail("a property without '}'");
    name = reader->text.substr(reader->at, end - reader->at);
    reader->at = end + 1;
  } else {
    reader->fail("\\p without braces");
  }
  const std::string key = plain(name);
  if (!key.empty()) set->members = property_members(key);
  if (set->members.empty()) reader->fail(str("the property \\p{", name, "}"));
  *cased = is_cased_property(key);
}

// A set of characters as one expression, and the parts that a class cannot hold.
struct Union {
  std::string members;             // the inside of a class
  std::vector<std::string> parts;  // each matches one character

  void add(const Set& set) {
    if (set.negated) {
      parts.push_back(class_of(set));
    } else {
      members += set.members;
    }
  }
  bool empty() const { return members.empty() && parts.empty(); }
  std::string expression() const {
    if (parts.empty()) return "[" + members + "]";
    std::string out = "(?:";
    if (!members.empty()) out += "[" + members + "]|";
    for (size_t i = 0; i < parts.size(); ++i) out += (i == 0 ? "" : "|") + parts[i];
    return out + ")";
  }
};

class ClassReader {
 public:
  ClassReader(Reader* reader, bool caseless) : reader_(*reader), caseless_(caseless) {}

  std::string read() {
    negated_ = reader_.take("^");
    bool first = true;
    for (;; first = false) {
      if (reader_.done()) reader_.fail("a class without ']'");
      if (reader_.next_is("]") && !first) break;
      if (first && reader_.next_is("]") && reader_.text.find(']', reader_.at + 1) == std::string_view::npos)
        reader_.fail("an empty class");
      read_item();
    }
    ++reader_.at;
    end_operand();
    return expression();
  }

 private:
  void read_item();
  bool take_posix();
  void add_set(const Set& set, bool cased);
  void add_character(char32_t character);
  void end_operand() {
    if (current_.empty()) reader_.fail("an empty part of a class");
    operands_.push_back(std::move(current_));
    current_ = {};
  }
  // Whether a '-' here is a member, not the sign of a range.
  void check_dash_after_set() const {
    if (reader_.next_is("-") && !reader_.next_is("-]")) reader_.fail("a range that begins with a set");
  }
  std::string expression() const {
    if (operands_.size() == 1 && operands_[0].parts.empty())
      return str(negated_ ? "[^" : "[", operands_[0].members, "]");
    std::string all;
    for (size_t i = 0; i + 1 < operands_.size(); ++i) all += "(?=" + operands_[i].expression() + ")";
    all = "(?:" + all + operands_.back().expression() + ")";
    return negated_ ? "(?:(?!" + all + ")(?s:.))" : all;
  }

  Reader& reader_;
  const bool caseless_;
  bool negated_ = false;
  Union current_;
  std::vector<Union> operands_;
};

bool ClassReader::take_posix() {
  const size_t end = reader_.text.find(":]", reader_.at);
  if (!reader_.next_is("[:") || end == std::string_view::npos) return false;
  std::string_view name = reader_.text.substr(reader_.at + 2, end - reader_.at - 2);
  const bool negated = name.starts_with("^");
  if (negated) name.remove_prefix(1);
  if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= 'a' && c <= 'z'; })) return false;
  const bool punct = name == "punct";  // with the symbols of ASCII and others, which \p{Punct} lacks
  const std::string members = punct                                ? "\\p{P}\\p{S}"
                              : name == "graph" || name == "print" ? ""
                                                                   : property_members(std::string(name));
  if (members.empty() || (caseless_ && is_cased_property(name))) reader_.fail(str("the class [:", name, ":] here"));
  reader_.at = end + 2;
  add_set({members, negated}, false);
  return true;
}

// Under (?i) a class holds what it would hold and every other case of it.
void ClassReader::add_set(const Set& set, bool cased) {
  const bool letters = set.members == "\\p{L}";
  if (caseless_ && (cased || (letters && set.negated))) reader_.fail("a set of one case of a letter under (?i)");
  current_.add(set);
  if (caseless_ && letters) current_.members += "\\x{345}";
  check_dash_after_set();
}

void ClassReader::add_character(char32_t character) {
  if (caseless_ && folds_oddly(character)) reader_.fail("a letter beyond ASCII in a class under (?i)");
  if (!reader_.next_is("-") || reader_.next_is("-]")) {
    current_.members += escaped(character);
    return;
  }
  ++reader_.at;
  if (reader_.next_is("-") || reader_.next_is("[")) reader_.fail("a range whose end is '-' or a class");
  char32_t last = 0;
  if (reader_.take("\\")) {
    if (!take_character_escape(&reader_, true, &last)) reader_.fail("a range that ends with a set");
  } else {
    last = reader_.character();
  }
  if (caseless_ && last > 0x7F) reader_.fail("a range beyond ASCII in a class under (?i)");
  if (last < character) reader_.fail("a range whose end is before its beginning");
  current_.members += escaped(character) + "-" + escaped(last);
}

void ClassReader::read_item() {
  if (reader_.take("&&")) {
    if (caseless_) reader_.fail("&& in a class under (?i)");
    return end_operand();
  }
  if (take_posix()) return;
  if (reader_.take("[")) {
    if (caseless_ && reader_.next_is("^")) reader_.fail("[^ in a class under (?i)");
    current_.parts.push_back(ClassReader(&reader_, caseless_).read());
    return check_dash_after_set();
  }
  if (!reader_.take("\\")) {
    const char32_t character = reader_.character();
    if (character == '-' && !reader_.next_is("]") && reader_.next_is("-")) reader_.fail("'--' in a class");
    return add_character(character);
  }
  Set set;
  bool cased = false;
  char32_t character = 0;
  if (take_set_escape(&reader_, true, &set, &cased)) {
    add_set(set, cased);
  } else if (take_character_escape(&reader_, true, &character)) {
    add_character(character);
  }
}

}  // namespace

bool folds_oddly(char32_t character) {
  const auto category = utf8proc_category(static_cast<int32_t>(character));
  return character > 0x7F && category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ME &&
         category != UTF8PROC_CATEGORY_LO;
}

char32_t Reader::character() {
  const Utf8Unit unit = next_utf8(text.substr(at));
  at += unit.length;
  return unit.code_point;
}

std::string_view Reader::shown() const { return text.substr(at, done() ? 0 : utf8_length(text[at])); }

void Reader::fail(const std::string& what) const {
  refuse(what);
  CHECK(false, "refuse() returned");
  std::abort();
}

std::string escaped(char32_t character) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string hex;
  for (char32_t rest = character; rest > 0 || hex.empty(); rest >>= 4) hex.insert(hex.begin(), kDigits[rest & 15]);
  return "\\x{" + hex + "}";
}

std::string class_of(const Set& set) { return (set.negated ? "[^" : "[") + set.members + "]"; }

bool take_set_escape(Reader* reader, bool in_class, Set* set, bool* cased) {
  *cased = false;
  if (reader->done()) reader->fail("a backslash at the end");
  const char kind = reader->text[reader->at];
  const char lower = static_cast<char>(kind | 0x20);
  const char* const members = lower == 'd'   ? "\\p{Nd}"
                              : lower == 's' ? "\\p{White_Space}"
                              : lower == 'w' ? in_class ? kWordInClass : kWordMembers
                              : lower == 'h' ? kHex
                                             : nullptr;
  if (members == nullptr && lower != 'p') return false;
  ++reader->at;
  set->negated = kind != lower;
  if (members != nullptr) {
    set->members = members;
  } else {
    take_property(reader, set, cased);
    if (!in_class && set->members == kWordInClass) set->members = kWordMembers;
  }
  return true;
}

bool take_character_escape(Reader* reader, bool in_class, char32_t* character) {
  if (reader->done()) reader->fail("a backslash at the end");
  const char kind = reader->text[reader->at];
  constexpr std::pair<char, char32_t> kControls[] = {{'n', 10}, {'r', 13}, {'t', 9}, {'f', 12},
                                                     {'v', 11}, {'a', 7},  {'e', 27}};
  for (const auto& [name, value] : kControls) {
    if (kind != name) continue;
    ++reader->at;
    *character = value;
    return true;
  }
  const bool alphanumeric =
      (kind >= 'a' && kind <= 'z') || (kind >= 'A' && kind <= 'Z') || (kind >= '0' && kind <= '9');
  if (!alphanumeric) {
    *character = reader->character();
    return true;
  }
  if (kind == 'b' && in_class) {
    ++reader->at;
    *character = 8;
  } else if (reader->take("x{")) {
    *character = take_digits(reader, 16, 1, 8, "\\x{…} without digits");
    if (!reader->take("}")) reader->fail("\\x{…} with more than one character");
  } else if (reader->take("x")) {
    *character = take_digits(reader, 16, 1, 2, "\\x without digits");
    if (*character > 0x7F) reader->fail("\\x of a byte above 7f");
  } else if (reader->take("u")) {
    *character = take_digits(reader, 16, 4, 4, "\\u without four digits");
  } else if (kind == '0') {
    *character = take_digits(reader, 8, 1, 3, "\\0");
  } else {
    if (in_class) reader->fail(str("\\", kind, " in a class"));
    return false;
  }
  if (*character > 0x10FFFF || (*character >= 0xD800 && *character < 0xE000))
    reader->fail("a number that is not a character");
  return true;
}

std::string read_class(Reader* reader, bool caseless) { return ClassReader(reader, caseless).read(); }

}  // namespace headrace::oniguruma
