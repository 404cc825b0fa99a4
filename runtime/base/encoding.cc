#include "runtime/base/encoding.h"

#include <algorithm>
#include <array>

#include "cache/base.h"
#include "runtime/base/utf8.h"

namespace headrace {
namespace {

using namespace std::string_view_literals;

struct Packed {
  std::string_view beginning, name, unpack;
};
constexpr auto kPacked = std::to_array<Packed>({{"\x1f\x8b"sv, "gzip", "gzip -dc"},
                                                {"\x28\xb5\x2f\xfd"sv, "zstd", "zstd -dc"},
                                                {"PK\x03\x04"sv, "zip", "unzip -p"},
                                                {"PK\x05\x06"sv, "zip", "unzip -p"},
                                                {"\xfd"
                                                 "7zXZ\0"sv,
                                                 "xz", "xz -dc"},
                                                {"BZh"sv, "bzip2", "bzip2 -dc"},
                                                {"\x04\x22\x4d\x18"sv, "lz4", "lz4 -dc"},
                                                {"7z\xbc\xaf\x27\x1c"sv, "7z", "7z e -so"}});

// "UTF-16", by its iconv name; empty: no sign of another encoding. Without a byte order mark Latin text has zeros in
// most bytes at the same places of each two or four.
std::string wide_encoding(std::string_view text) {
  if (text.starts_with("\xff\xfe\0\0"sv) || text.starts_with("\0\0\xfe\xff"sv)) return "UTF-32";
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return "UTF-16";
  const std::string_view head = text.substr(0, 256);
  std::array<size_t, 4> zeros = {};
  for (size_t i = 0; i < head.size(); ++i) zeros[i % 4] += head[i] == '\0';
  const size_t quads = head.size() / 4, most = quads - quads / 4;
  if (quads == 0) return "";
  const auto are_zero = [&](size_t place) { return zeros[place] >= most; };
  const auto have_none = [&](size_t place) { return zeros[place] <= quads / 4; };
  if (have_none(0) && are_zero(1) && are_zero(2) && are_zero(3)) return "UTF-32LE";
  if (are_zero(0) && are_zero(1) && are_zero(2) && have_none(3)) return "UTF-32BE";
  if (have_none(0) && are_zero(1) && have_none(2) && are_zero(3)) return "UTF-16LE";
  if (are_zero(0) && have_none(1) && are_zero(2) && have_none(3)) return "UTF-16BE";
  return "";
}

}  // namespace

void refuse_other_encoding(const std::string& name, std::string_view text) {
  if (const std::string encoding = wide_encoding(text); !encoding.empty()) {
    throw_error(ExitCode::kBadInput, name, "is not UTF-8 text: it looks like " + encoding,
                "Convert it: iconv -f " + encoding + " -t UTF-8");
  }
  for (const Packed& packed : kPacked) {
    if (!text.starts_with(packed.beginning)) continue;
    throw_error(ExitCode::kBadInput, name, str("is not UTF-8 text: it looks like ", packed.name),
                str("Unpack it: ", packed.unpack));
  }
}

bool looks_binary(std::string_view head) {
  if (!wide_encoding(head).empty()) return false;
  if (std::any_of(kPacked.begin(), kPacked.end(), [&](const Packed& one) { return head.starts_with(one.beginning); }))
    return true;
  if (head.find('\0') == std::string_view::npos) return false;
  for (std::string_view rest = head; !rest.empty();) {  // a text may have a zero
    const Utf8Unit unit = next_utf8(rest);
    if (unit.kind == Utf8Unit::kInvalid) return true;
    rest.remove_prefix(unit.length);
  }
  return std::count(head.begin(), head.end(), '\0') > static_cast<std::ptrdiff_t>(head.size() / 16);
}

}  // namespace headrace
