#include "runtime/grammar/json_parts.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "runtime/base/utf8.h"

namespace headrace {
namespace {

constexpr int32_t kMaxIndentation = 64;  // so that no answer is white space alone
constexpr std::string_view kShortEscapes = "\"\\/bfnrt";
constexpr int kFirstPlain = 0x20;  // below are control characters, which JSON escapes

// A character beyond ASCII in UTF-8 (RFC 3629).
int32_t beyond_ascii(Grammar* g, int32_t next) {
  const ByteSet tail = byte_range(0x80, 0xbf);
  const int32_t one = g->bytes(tail, next), two = g->bytes(tail, one);
  const auto from = [&](int first, int last, const ByteSet& second, int32_t then) {
    return g->bytes(byte_range(first, last), g->bytes(second, then));
  };
  return g->split({g->bytes(byte_range(0xc2, 0xdf), one), from(0xe0, 0xe0, byte_range(0xa0, 0xbf), one),
                   from(0xe1, 0xec, tail, one), from(0xed, 0xed, byte_range(0x80, 0x9f), one),
                   from(0xee, 0xef, tail, one), from(0xf0, 0xf0, byte_range(0x90, 0xbf), two),
                   from(0xf1, 0xf3, tail, two), from(0xf4, 0xf4, byte_range(0x80, 0x8f), two)});
}

ByteSet hex_digits() { return byte_set("0123456789abcdefABCDEF"); }

// The escape of a character that JSON does not allow as itself.
std::string escape_of(int c) {
  constexpr std::string_view kNamed = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
  if (const size_t at = kNamed.find(static_cast<char>(c)); at != std::string_view::npos) {
    return {'\\', kNames[at]};
  }
  constexpr std::string_view kHex = "0123456789abcdef";
  return {'\\', 'u', '0', '0', kHex[static_cast<size_t>(c) >> 4], kHex[static_cast<size_t>(c) & 15]};
}

bool plain(int c) { return c >= kFirstPlain && c != '"' && c != '\\'; }

}  // namespace

int32_t json_space(Grammar* g, int32_t next) {
  const int32_t indentation = g->loop(g->bytes(byte_set(" \t"), kReturnNode), 0, kMaxIndentation, next);
  return g->split({next, g->bytes(byte_set(" "), next), g->bytes(byte_set("\n"), indentation)});
}

void CharSet::add(char32_t c) {
  if (c < 128) {
    ascii.set(c);
  } else if (!others && named.find(c) == std::u32string::npos) {
    named += c;
  }
}

void CharSet::add_range(char first, char last) {
  for (int c = first; c <= last; ++c) ascii.set(static_cast<size_t>(c));
}

CharSet CharSet::any() {
  CharSet set;
  set.ascii.set();
  set.others = true;
  return set;
}

int32_t json_char(Grammar* g, const CharSet& set, int32_t next) {
  ByteSet themselves;
  std::vector<int32_t> choices;
  for (int c = 0; c < 128; ++c) {
    if (!set.ascii.test(static_cast<size_t>(c))) continue;
    if (plain(c)) {
      themselves.set(static_cast<size_t>(c));
    } else {
      choices.push_back(g->literal(escape_of(c), next));
    }
  }
  if (themselves.any()) choices.push_back(g->bytes(themselves, next));
  if (set.others) choices.push_back(beyond_ascii(g, next));
  for (const char32_t c : set.others ? std::u32string() : set.named) {
    std::string text;
    append_code_point(c, &text);
    choices.push_back(g->literal(text, next));
  }
  return g->split(choices);  // none: nothing is in the set, and drop_endless() removes it
}

int32_t json_any_char(Grammar* g, int32_t next) {
  ByteSet themselves = byte_range(kFirstPlain, 127);
  themselves &= ~byte_set("\"\\");
  const int32_t hex1 = g->bytes(hex_digits(), next), hex2 = g->bytes(hex_digits(), hex1),
                hex3 = g->bytes(hex_digits(), hex2);
  const int32_t units = g->split(
      {g->bytes(hex_digits() & ~byte_set("dD"), hex3), g->bytes(byte_set("dD"), g->bytes(byte_range('0', '7'), hex2))});
  const int32_t escape =
      g->bytes(byte_set("\\"), g->split({g->bytes(byte_set(kShortEscapes), next), g->literal("u", units)}));
  return g->split({g->bytes(themselves, next), beyond_ascii(g, next), escape});
}

int32_t json_string(Grammar* g, int32_t min, int32_t max, int32_t next) {
  return g->literal("\"", g->loop(json_any_char(g, kReturnNode), min, max, g->literal("\"", next)));
}

// Byte by byte beside the names: behind a byte that continues none of them anything may follow. Where a name has a
// character beyond ASCII, other characters beyond ASCII are left out.
int32_t json_other_name(Grammar* g, const std::vector<std::string>& names, int32_t next) {
  ByteSet plain_bytes = byte_range(kFirstPlain, 127) & ~byte_set("\"\\");
  const int32_t plain_byte = g->bytes(plain_bytes, kReturnNode);
  const int32_t free = g->loop(g->split({plain_byte, beyond_ascii(g, kReturnNode)}), 0, -1, next);
  const std::function<int32_t(const std::vector<std::string>&, size_t)> beside =
      [&](const std::vector<std::string>& same, size_t at) {
        std::map<unsigned char, std::vector<std::string>> by_byte;
        bool is_name = false;
        for (const std::string& name : same) {
          if (name.size() == at) {
            is_name = true;
          } else {
            by_byte[static_cast<unsigned char>(name[at])].push_back(name);
          }
        }
        ByteSet others = plain_bytes;
        bool beyond = true;
        std::vector<int32_t> choices;
        for (const auto& [byte, some] : by_byte) {
          others.reset(byte);
          beyond = beyond && byte < 0x80;
          if (byte == '\\') continue;  // an escape: other names have none
          choices.push_back(g->bytes(byte_range(byte, byte), beside(some, at + 1)));
        }
        const bool inside = at > 0 && static_cast<unsigned char>(same.front()[at - 1]) >= 0x80 &&
                            at < same.front().size() && is_continuation(same.front()[at]);
        if (!is_name && !inside) choices.push_back(next);
        if (!inside && others.any()) choices.push_back(g->bytes(others, free));
        if (!inside && beyond) choices.push_back(beyond_ascii(g, free));
        return g->split(choices);
      };
  return names.empty() ? free : beside(names, 0);
}

int32_t json_array(Grammar* g, int32_t element, int32_t min, int32_t max, int32_t next) {
  const int32_t close = g->literal("]", next);
  if (max == 0) return g->literal("[", json_space(g, close));
  const int32_t end = json_space(g, close);
  const int32_t further = g->literal(",", json_space(g, element));
  const int32_t rest = g->loop(further, std::max(min - 1, 0), max < 0 ? -1 : max - 1, end);
  const int32_t first = g->call(element, rest);
  return g->literal("[", json_space(g, min == 0 ? g->optional(first, close) : first));
}

AnyJson json_any(Grammar* g) {
  const int32_t value = g->later(), object = g->later();
  const int32_t close = g->literal("}", kReturnNode);
  const int32_t member = json_string(g, 0, -1, g->literal(":", json_space(g, value)));
  const int32_t rest = g->loop(g->literal(",", json_space(g, member)), 0, -1, json_space(g, close));
  g->settle(object, g->literal("{", json_space(g, g->optional(g->call(member, rest), close))));
  const std::vector<int32_t> kinds = {object,
                                      json_array(g, value, 0, -1, kReturnNode),
                                      json_string(g, 0, -1, kReturnNode),
                                      *json_number(g, {}, kReturnNode),
                                      g->literal("true", kReturnNode),
                                      g->literal("false", kReturnNode),
                                      g->literal("null", kReturnNode)};
  g->settle(value, g->split(kinds));
  return {.value = value, .object = object};
}

}  // namespace headrace
