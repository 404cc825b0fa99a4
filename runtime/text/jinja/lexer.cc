#include "runtime/text/jinja/lexer.h"

#include <array>
#include <charconv>

#include "cache/base.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/characters.h"

namespace headrace::jinja {

namespace {

// "\r\n" and "\r" become "\n"; one line end at the end is dropped.
std::string normalized(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<uint8_t>(c) >= 0x80;
}
bool continues_name(char c) { return begins_name(c) || is_digit(c); }
bool is_sign(char c) { return c == '-' || c == '+'; }

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : name_(name) {
    if (source.size() > kMaxSourceBytes) fail(str("is ", source.size(), " bytes long; the most are ", kMaxSourceBytes));
    if (!is_utf8(source)) fail("is not UTF-8");
    source_ = normalized(source);
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t open = next_tag();
      if (open == std::string::npos) {
        add_text(source_.size(), false, '\0');
        break;
      }
      read_tag(open);
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw_error(ExitCode::kBadInput, str(name_, ":", line_), what, "the chat template cannot be read");
  }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool next_is(std::string_view text) const { return rest().substr(0, text.size()) == text; }
  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  void skip(size_t bytes) {
    for (; bytes > 0; --bytes) line_ += source_[at_++] == '\n';
  }
  void skip_space() { skip(rest().size() - without_leading_space(rest()).size()); }
  void add(TokenKind kind, std::string text, Value number = None()) {
    tokens_.push_back({kind, line_, std::move(text), std::move(number)});
  }

  size_t next_tag() const {
    for (size_t open = source_.find('{', at_); open != std::string::npos; open = source_.find('{', open + 1)) {
      const char kind = open + 1 < source_.size() ? source_[open + 1] : '\0';
      if (kind == '{' || kind == '%' || kind == '#') return open;
    }
    return std::string::npos;
  }

  // Adds the text [at_, end), and skips it. `sign` is the tag's after its opening; a block's or comment's tag removes
  // the white space of its line before it (lstrip_blocks).
  void add_text(size_t end, bool before_block, char sign) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    const bool begins_line = at_ == 0 || source_[at_ - 1] == '\n';
    if (sign == '-') {
      text = without_trailing_space(text);
    } else if (before_block && sign != '+') {
      const size_t line = text.rfind('\n') + 1;  // 0 if there is none
      if ((line > 0 || begins_line) && without_leading_space(text.substr(line)).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
    skip(end - at_);
  }

  // Behind the end of a block or comment: '-' removes all white space; a line end goes too (trim_blocks) unless '+'.
  void trim_after(char sign) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && peek() == '\n') {
      skip(1);
    }
  }

  void read_tag(size_t open) {
    const char kind = source_[open + 1];
    const char sign = open + 2 < source_.size() && is_sign(source_[open + 2]) ? source_[open + 2] : '\0';
    add_text(open, kind != '{', sign);
    skip(sign == '\0' ? 2 : 3);
    if (kind == '#') {
      read_comment();
    } else if (kind == '%' && read_raw_open()) {
      read_raw();
    } else {
      add(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
      read_inside(kind == '{');
    }
  }

  void read_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment has no end");
    const char sign = end > at_ && is_sign(source_[end - 1]) ? source_[end - 1] : '\0';
    skip(end + 2 - at_);
    trim_after(sign);
  }

  // "raw %}" behind "{%": skips it.
  bool read_raw_open() {
    std::string_view text = without_leading_space(rest());
    if (text.substr(0, 3) != "raw") return false;
    text = without_leading_space(text.substr(3));
    const bool strips = text.substr(0, 3) == "-%}";
    if (!strips && text.substr(0, 2) != "%}") return false;
    skip(rest().size() - text.size() + (strips ? 3 : 2));
    if (strips) skip_space();
    return true;
  }

  void read_raw() {
    for (size_t open = source_.find("{%", at_); open != std::string::npos; open = source_.find("{%", open + 1)) {
      std::string_view text = std::string_view(source_).substr(open + 2);
      const char sign = !text.empty() && is_sign(text[0]) ? text[0] : '\0';
      text = without_leading_space(text.substr(sign == '\0' ? 0 : 1));
      if (text.substr(0, 6) != "endraw") continue;
      text = without_leading_space(text.substr(6));
      const char end_sign = !text.empty() && is_sign(text[0]) ? text[0] : '\0';
      if (end_sign != '\0') text.remove_prefix(1);
      if (text.substr(0, 2) != "%}") continue;
      add_text(open, true, sign);
      skip(rest().size() - text.size() + 2);
      trim_after(end_sign);
      return;
    }
    fail("a raw block has no end");
  }

  void read_inside(bool variable) {
    const std::string_view close = variable ? "}}" : "%}";
    std::string brackets;
    for (;;) {
      skip_space();
      if (at_ == source_.size()) fail("a tag has no end");
      if (brackets.empty() && end_of_tag(variable, close)) return;
      read_token(&brackets);
    }
  }

  bool end_of_tag(bool variable, std::string_view close) {
    const bool is_signed = is_sign(peek()) && rest().substr(1, 2) == close && !(variable && peek() == '+');
    if (!is_signed && !next_is(close)) return false;
    const char sign = is_signed ? peek() : '\0';
    add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "");
    skip(is_signed ? 3 : 2);
    if (variable && sign == '\0') return true;
    trim_after(sign);
    return true;
  }

  void read_token(std::string* brackets) {
    const char c = peek();
    if (begins_name(c)) {
      size_t length = 1;
      while (continues_name(peek(length))) ++length;
      add(TokenKind::kName, source_.substr(at_, length));
      skip(length);
    } else if (is_digit(c)) {
      read_number();
    } else if (c == '\'' || c == '"') {
      read_string();
    } else {
      read_operator(brackets);
    }
  }

  size_t digits(size_t ahead) const {
    while (is_digit(peek(ahead)) || (peek(ahead) == '_' && is_digit(peek(ahead + 1)))) ++ahead;
    return ahead;
  }

  void read_number() {
    size_t length = digits(0);
    bool real = false;
    if (peek(length) == '.' && is_digit(peek(length + 1))) {
      real = true;
      length = digits(length + 1);
    }
    if (peek(length) == 'e' || peek(length) == 'E') {
      const size_t exponent = length + (is_sign(peek(length + 1)) ? 2 : 1);
      if (is_digit(peek(exponent))) {
        real = true;
        length = digits(exponent);
      }
    }
    std::string text;
    for (char c : rest().substr(0, length))
      if (c != '_') text.push_back(c);
    Value value;
    if (real) {
      double number = 0;
      std::from_chars(text.data(), text.data() + text.size(), number);
      value = number;
    } else {
      int64_t number = 0;
      if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc())
        fail(str("the number ", text, " is too large"));
      value = number;
    }
    add(TokenKind::kNumber, text, value);
    skip(length);
  }

  void read_string() {
    const char quote = peek();
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string has no end");
    std::string text;
    if (!unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1), &text))
      fail("a string has a backslash that escapes no character");
    add(TokenKind::kString, std::move(text));
    skip(end + 1 - at_);
  }

  void read_operator(std::string* brackets) {
    static constexpr std::array<std::string_view, 26> kOperators = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                                                    "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                                                    "]",  "{",  "}",  ".",  ",",  ":",  "|", ";"};
    for (std::string_view text : kOperators) {
      if (!next_is(text)) continue;
      const size_t open = std::string_view("([{").find(text), close = std::string_view(")]}").find(text);
      if (open != std::string_view::npos) brackets->push_back(")]}"[open]);
      if (close != std::string_view::npos) {
        if (brackets->empty() || brackets->back() != text[0]) fail(str("'", text, "' closes nothing"));
        brackets->pop_back();
      }
      add(TokenKind::kOperator, std::string(text));
      skip(text.size());
      return;
    }
    fail(str("'", rest().substr(0, 1), "' has no meaning in a tag"));
  }

  std::string source_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source, const std::string& name) { return Lexer(source, name).run(); }

}  // namespace headrace::jinja
