// libFuzzer: any bytes as the manifest of a saved piece, as they are and with the checksum made right. What is taken
// must be what it says, be written again as it was, and go into an index without harm.
#include <array>
#include <cstring>

#include "cache/base.h"
#include "offload/host/checksum.h"
#include "runtime/prefix/index.h"

namespace {

using namespace headrace;

void check(const std::string& text) {
  std::string wrong;
  try {
    const std::optional<PrefixPiece> piece = decode_manifest(text, "fuzz.seg", &wrong);
    CHECK(piece.has_value() == wrong.empty(), wrong);
    if (!piece) return;
    CHECK(encode_manifest(*piece) == text);
    CHECK(piece->checksums.size() <= text.size() && piece->tokens.size() <= text.size());
    PrefixIndex index;
    index.add({.piece = *piece, .bytes = text.size(), .used_ns = 1});
    const PrefixMatch match = index.match(piece->parent, piece->tokens, 1);
    CHECK(match.rows <= piece->rows);
    CHECK(index.to_drop(0, {}).size() == 1);
  } catch (const Error& error) {  // a newer format
    CHECK(error.code() == ExitCode::kStorage, error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  check(text);
  uint64_t sum = checksum(std::as_bytes(std::span(text)));
  check(text.append(reinterpret_cast<const char*>(&sum), sizeof sum));
  return 0;
}
