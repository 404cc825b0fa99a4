#include "runtime/text/byte_level.h"

#include <array>
#include <cstdint>

#include "runtime/base/utf8.h"

namespace headrace {

namespace {

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

}  // namespace

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

}  // namespace headrace
