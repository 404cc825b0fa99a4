// libFuzzer: any bytes as the manifest of a saved block, as they are and with the checksum made right. What is taken
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
    const std::optional<PrefixBlock> block = decode_manifest(text, "fuzz.seg", &wrong);
    CHECK(block.has_value() == wrong.empty(), wrong);
    if (!block) return;
    CHECK(encode_manifest(*block) == text);
    CHECK(block->checksums.size() <= text.size() && block->tokens.size() <= text.size());
    PrefixIndex index;
    index.add({.block = *block, .bytes = text.size(), .used_ns = 1});
    const PrefixMatch match = index.match(block->parent, block->tokens, 1);
    CHECK(match.rows <= block->rows);
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
