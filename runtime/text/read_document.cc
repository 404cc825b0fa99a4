// Reads a document: limits and text checks.
#include <algorithm>
#include <cstdio>

#include "cache/base.h"
#include "runtime/base/encoding.h"
#include "runtime/base/file_hints.h"
#include "runtime/base/utf8.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

constexpr uint64_t kMinLimitBytes = 64 * kKiB;  // shorter files are encoded, and the error reports their tokens

bool is_blank(std::string_view text) {
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    if (!is_white_space(unit.code_point)) return false;
    text.remove_prefix(unit.length);
  }
  return true;
}

void check_text(const std::string& name, std::string_view text) {
  refuse_lfs_pointer(name, text);
  refuse_other_encoding(name, text);
  if (const std::optional<size_t> bad = first_bad_utf8(text)) {
    char byte[8];
    std::snprintf(byte, sizeof byte, "0x%02x", static_cast<unsigned>(static_cast<uint8_t>(text[*bad])));
    throw_error(ExitCode::kBadInput, name, str("is not UTF-8 text: byte ", byte, " at offset ", *bad),
                "If it is text in another encoding, convert it: iconv -f LATIN1 -t UTF-8");
  }
  if (is_blank(text)) throw_error(ExitCode::kBadInput, name, "is empty");
}

}  // namespace

DocumentLimit limit_of_context(int64_t context_tokens, uint64_t longest_token_bytes) {
  uint64_t bytes = kMaxDocumentBytes;
  if (!checked_mul(static_cast<uint64_t>(context_tokens), longest_token_bytes, &bytes)) bytes = kMaxDocumentBytes;
  bytes = std::max(bytes, kMinLimitBytes);
  if (bytes >= kMaxDocumentBytes) return {};
  return {.bytes = bytes, .context_tokens = context_tokens};
}

void check_document_size(const std::string& name, uint64_t bytes, const DocumentLimit& limit) {
  if (bytes <= limit.bytes) return;
  const std::string has = str("has ", bytes, " bytes or more: ");
  if (limit.context_tokens == 0)
    throw_error(ExitCode::kBadInput, name, str(has, limit.bytes, " are read at most"), "Give a part of it.");
  throw ContextExceeded(
      name, str(has, "no text of more than ", limit.bytes, " fits a context of ", limit.context_tokens, " tokens"),
      kShortenHint);
}

std::optional<size_t> first_bad_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = next_utf8(text.substr(at));
    if (unit.kind != Utf8Unit::kCharacter) return at;
    at += unit.length;
  }
  return std::nullopt;
}

std::string read_document(const std::string& path, const ReadOptions& options) {
  const std::string name = stream_name(path);
  std::string text = read_stream(
      path, [&](uint64_t bytes) { check_document_size(name, bytes, options.limit); }, options.interrupt);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  check_text(name, text);
  return text;
}

}  // namespace headrace
