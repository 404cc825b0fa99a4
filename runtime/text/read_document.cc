// Reads a document: limits and text checks.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "cache/base.h"
#include "runtime/base/encoding.h"
#include "runtime/base/file_hints.h"
#include "runtime/base/utf8.h"
#include "runtime/text/document.h"
#include "runtime/text/document_format.h"

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

// Whether a text in UTF-8 ends within the character at `bad`. A single byte there, with ASCII alone before it, is the
// last letter of a text in Latin-1 rather.
bool is_cut(std::string_view text, size_t bad) {
  const Utf8Unit unit = next_utf8(text.substr(bad));
  const std::string_view before = text.substr(0, bad);
  return unit.kind == Utf8Unit::kTruncated &&
         (unit.length > 1 || std::any_of(before.begin(), before.end(), is_continuation));
}

void check_text(const std::string& name, std::string_view text) {
  refuse_lfs_pointer(name, text);
  refuse_other_encoding(name, text);
  if (const std::optional<size_t> bad = first_bad_utf8(text)) {
    if (is_cut(text, *bad)) {
      throw_error(ExitCode::kBadInput, name, str("ends within a character, at offset ", *bad, ": the text was cut"),
                  str("Get the whole file, or keep what is whole: head -c ", *bad));
    }
    char byte[8];
    std::snprintf(byte, sizeof byte, "0x%02x", static_cast<unsigned>(static_cast<uint8_t>(text[*bad])));
    throw_error(ExitCode::kBadInput, name, str("is not UTF-8 text: byte ", byte, " at offset ", *bad),
                "If it is text in another encoding, convert it: iconv -f LATIN1 -t UTF-8");
  }
  if (is_blank(text)) throw_error(ExitCode::kBadInput, name, "is empty");
}

// The first bytes of a regular file; empty of anything else, and of what cannot be read.
std::string head_of(const std::string& path) {
  std::error_code unknown;
  if (path == "-" || !std::filesystem::is_regular_file(path, unknown)) return "";
  std::ifstream in(path, std::ios::binary);
  std::string head(kFormatHeadBytes, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return head;
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
    throw_error(ExitCode::kBadInput, name, str(has, "the limit is ", limit.bytes), "Split it.");
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

std::string document_text(const std::string& path, const ReadOptions& options) {
  const std::string name = stream_name(path);
  // Without a name to open twice it may be anything until it has been read.
  const std::string head = head_of(path);
  const bool plain = !head.empty() && !is_converted(document_format(name, head));
  const DocumentLimit most = plain ? options.limit : DocumentLimit();
  std::string text = read_stream(
      path, [&](uint64_t bytes) { check_document_size(name, bytes, bytes > most.bytes ? options.limit : most); },
      options.interrupt);
  return text_of_document(name, std::move(text), options);
}

std::string text_of_document(const std::string& name, std::string content, const ReadOptions& options) {
  std::string text = std::move(content);
  const DocumentFormat format = document_format(name, std::string_view(text).substr(0, kFormatHeadBytes));
  refuse_office(name, format);
  if (is_converted(format)) {
    if (format == DocumentFormat::kHtml) check_text(name, text);
    text = convert_document(name, format, text,
                            {.seconds = options.convert_seconds,
                             .memory_bytes = options.convert_memory_bytes,
                             .output_bytes = options.limit.bytes,
                             .interrupt = options.interrupt});
  }
  check_document_size(name, text.size(), options.limit);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  check_text(name, text);
  return text;
}

namespace {

// ".png"; a hidden or plain name has none.
std::string suffix_of(const std::string& path) {
  const std::string suffix = std::filesystem::path(path).extension().string();
  return suffix.size() < 2 ? "without a suffix" : suffix;
}

}  // namespace

bool is_document(const std::string& path) {
  const std::string head = head_of(path);
  const DocumentFormat format = document_format(path, head);
  return format != DocumentFormat::kOther && format != DocumentFormat::kOffice;
}

std::string skipped_note(const std::vector<std::string>& skipped) {
  std::map<std::string, int64_t> kinds;
  for (const std::string& file : skipped) ++kinds[suffix_of(file)];
  std::string list;
  for (const auto& [suffix, count] : kinds) list += str(list.empty() ? ": " : ", ", count, " ", suffix);
  const bool one = skipped.size() == 1;
  return skipped.empty() ? ""
                         : str("skipped ", skipped.size(),
                               one ? " file that is not a document" : " files that are not documents", list);
}

}  // namespace headrace
