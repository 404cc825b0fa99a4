#include "runtime/base/utf8.h"

namespace headrace {

namespace {

// The second byte's range depends on the first: no overlong forms, no surrogates, nothing above U+10FFFF.
struct SecondByte {
  uint8_t low, high;
};
SecondByte second_byte(uint8_t lead) {
  switch (lead) {
    case 0xE0:
      return {0xA0, 0xBF};
    case 0xED:
      return {0x80, 0x9F};
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};
    default:
      return {0x80, 0xBF};
  }
}

}  // namespace

Utf8Unit next_utf8(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {Utf8Unit::kCharacter, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Unit::kInvalid, 1, 0};
  const size_t length = utf8_length(text[0]);
  char32_t code_point = lead & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Unit::kTruncated, i, 0};
    const auto byte = static_cast<uint8_t>(text[i]);
    const SecondByte range = i == 1 ? second_byte(lead) : SecondByte{0x80, 0xBF};
    if (byte < range.low || byte > range.high) return {Utf8Unit::kInvalid, i, 0};
    code_point = code_point << 6 | (byte & 0x3F);
  }
  return {Utf8Unit::kCharacter, length, code_point};
}

bool is_white_space(char32_t c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    if (unit.kind != Utf8Unit::kCharacter) return false;
    text.remove_prefix(unit.length);
  }
  return true;
}

void append_valid_utf8(std::string_view text, std::string* out) {
  Utf8Filter filter;
  filter.push(text, out);
  filter.finish(out);
}

void append_code_point(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
    return;
  }
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  const char32_t mark = more == 1 ? 0xC0 : more == 2 ? 0xE0 : 0xF0;
  out->push_back(static_cast<char>(mark | c >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) out->push_back(static_cast<char>(0x80 | (c >> (6 * i) & 0x3F)));
}

void Utf8Filter::push(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    bytes = joined;
    held_.clear();
  }
  size_t good = 0;  // bytes[0, good) are valid and not yet written
  while (good < bytes.size()) {
    const Utf8Unit unit = next_utf8(bytes.substr(good));
    if (unit.kind == Utf8Unit::kCharacter) {
      good += unit.length;
      continue;
    }
    out->append(bytes.substr(0, good));
    if (unit.kind == Utf8Unit::kTruncated) {
      held_ = bytes.substr(good);
      return;
    }
    out->append(kReplacement);
    bytes.remove_prefix(good + unit.length);
    good = 0;
  }
  out->append(bytes);
}

void Utf8Filter::finish(std::string* out) {
  if (!held_.empty()) out->append(kReplacement);
  held_.clear();
}

}  // namespace headrace
