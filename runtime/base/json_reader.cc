#include "runtime/base/json_reader.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "runtime/base/utf8.h"

namespace headrace {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_high(char32_t unit) { return unit >= 0xD800 && unit <= 0xDBFF; }
bool is_low(char32_t unit) { return unit >= 0xDC00 && unit <= 0xDFFF; }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// The character that a backslash and `c` stand for; '\0': another escape, or none.
char escaped(char c) {
  constexpr std::string_view kNames = "\"\\/bfnrt", kCharacters = "\"\\/\b\f\n\r\t";
  const size_t place = kNames.find(c);
  return place == std::string_view::npos ? '\0' : kCharacters[place];
}

}  // namespace

JsonText::JsonText(std::string_view text, const std::string& source, JsonOrigin origin)
    : text_(text), source_(source), origin_(origin) {
  if (text.empty()) throw_error(ExitCode::kBadInput, source, "is not valid JSON: it is empty", "it may be cut short");
  if (text.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
}

void JsonText::refuse(const std::string& why) const {
  throw_error(
      ExitCode::kBadInput, source_,
      str("is not valid JSON: ", why, at_ >= text_.size() ? ", at its end" : "", ", byte ", at_, " of ", text_.size()),
      at_ >= text_.size() ? "it may be cut short" : "");
}

void JsonText::count_value(int depth) {
  if (depth > kMaxJsonDepth) {
    throw_error(ExitCode::kBadInput, source_,
                str("JSON is nested deeper than ", kMaxJsonDepth, " levels, at byte ", at_));
  }
  const uint64_t most = origin_ == JsonOrigin::kClient ? kMaxClientValues : kMaxJsonValues;
  if (++values_ > most) throw_error(ExitCode::kBadInput, source_, str("JSON has more than ", most, " values"));
}

char JsonText::peek() {
  while (at_ < text_.size() && (text_[at_] == ' ' || (text_[at_] >= '\t' && text_[at_] <= '\r'))) {
    if (text_[at_] == '\v' || text_[at_] == '\f') break;
    ++at_;
  }
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool JsonText::take(char c) {
  if (peek() != c || at_ == text_.size()) return false;
  ++at_;
  return true;
}

void JsonText::expect(char c) {
  if (!take(c)) refuse(str("'", c, "' is missing"));
}

void JsonText::literal(std::string_view word) {
  if (!text_.substr(at_).starts_with(word)) refuse("a value is missing");
  at_ += word.size();
}

void JsonText::end() {
  peek();
  if (at_ < text_.size()) refuse("there is more after it");
}

std::string JsonText::string() {
  const size_t quote = at_++;
  size_t close = at_;
  while (close < text_.size() && text_[close] != '"') close += text_[close] == '\\' ? 2 : 1;
  if (close >= text_.size()) {
    at_ = text_.size();
    refuse(str("the string at byte ", quote, " has no end"));
  }
  std::string out;
  out.reserve(close - at_);  // no escape is shorter than what it stands for
  while (at_ < close) {
    const size_t begin = at_;
    while (at_ < close && text_[at_] != '\\') {
      if (static_cast<uint8_t>(text_[at_]) < 0x20) refuse("a control character in a string must be escaped");
      const Utf8Unit unit = next_utf8(text_.substr(at_, close - at_));
      if (unit.kind != Utf8Unit::kCharacter) refuse("a string is not UTF-8");
      at_ += unit.length;
    }
    out.append(text_.substr(begin, at_ - begin));
    if (at_ < close) escape(&out);
  }
  ++at_;
  return out;
}

void JsonText::escape(std::string* out) {
  const char name = text_[at_ + 1];
  if (name != 'u') {
    const char c = escaped(name);
    if (c == '\0') refuse("an escape in a string is unknown");
    out->push_back(c);
    at_ += 2;
    return;
  }
  at_ += 2;
  const char32_t first = unit();
  append_code_point(is_high(first) || is_low(first) ? surrogate(first) : first, out);
}

char32_t JsonText::unit() {
  char32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const int digit = at_ < text_.size() ? hex_value(text_[at_]) : -1;
    if (digit < 0) refuse("\\u needs four hexadecimal digits");
    value = value << 4 | static_cast<char32_t>(digit);
  }
  return value;
}

char32_t JsonText::surrogate(char32_t first) {
  if (is_high(first) && text_.substr(at_).starts_with("\\u")) {
    const size_t behind = at_;
    at_ += 2;
    const char32_t second = unit();
    if (is_low(second)) return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    at_ = behind;  // it is a character of its own
  }
  if (origin_ == JsonOrigin::kFile) refuse("a lone surrogate in a string");
  return 0xFFFD;
}

void JsonText::digits() {
  if (at_ == text_.size() || !is_digit(text_[at_])) refuse("a value is missing or wrong");
  while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
}

std::string_view JsonText::number(bool* whole) {
  const size_t begin = at_;
  const auto next_is = [this](std::string_view any) {
    return at_ < text_.size() && any.find(text_[at_]) != std::string_view::npos;
  };
  if (next_is("-")) ++at_;
  if (next_is("0")) {
    ++at_;
  } else {
    digits();
  }
  const size_t end_of_whole = at_;
  if (next_is(".")) {
    ++at_;
    digits();
  }
  if (next_is("eE")) {
    ++at_;
    if (next_is("+-")) ++at_;
    digits();
  }
  *whole = at_ == end_of_whole;
  return text_.substr(begin, at_ - begin);
}

template <typename Json>
Json json_number(JsonText* text) {
  bool whole = false;
  const std::string_view digits = text->number(&whole);
  const char* const begin = digits.data();
  const char* const end = begin + digits.size();
  int64_t integer = 0;
  uint64_t natural = 0;
  if (whole && digits[0] != '-' && std::from_chars(begin, end, natural).ec == std::errc()) return natural;
  if (whole && std::from_chars(begin, end, integer).ec == std::errc()) return integer;
  double real = 0;
  if (std::from_chars(begin, end, real).ec != std::errc()) real = std::strtod(std::string(digits).c_str(), nullptr);
  if (std::isinf(real) && text->origin() == JsonOrigin::kFile) text->refuse("a number is too large");
  return real;
}

template nlohmann::json json_number(JsonText* text);
template nlohmann::ordered_json json_number(JsonText* text);

}  // namespace headrace
