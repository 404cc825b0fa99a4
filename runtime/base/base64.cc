#include "runtime/base/base64.h"

#include <cstdint>

namespace headrace {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::string_view kSpace = " \t\r\n";

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  size_t padding = 0, digits = 0;
  for (; !text.empty() && (text.back() == '=' || kSpace.find(text.back()) != kSpace.npos); text.remove_suffix(1)) {
    padding += text.back() == '=' ? 1 : 0;
  }
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  for (const char c : text) {
    if (kSpace.find(c) != kSpace.npos) continue;
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (++digits % 4 == 1) continue;               // six bits are no byte yet
    const size_t left = (4 - digits % 4) % 4 * 2;  // bits of the next byte
    bytes += static_cast<char>(bits >> left & 0xff);
  }
  const size_t last = digits % 4;
  const bool whole = last != 1 && (padding == 0 || padding == (4 - last) % 4);
  return whole ? std::optional(bytes) : std::nullopt;
}

}  // namespace headrace
