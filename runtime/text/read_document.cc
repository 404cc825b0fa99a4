// Reads a document: limits, waiting for pipes, and text checks.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cache/base.h"
#include "runtime/base/file_hints.h"
#include "runtime/base/utf8.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

constexpr int kInterruptCheckMs = 100;
constexpr uint64_t kMinLimitBytes = 64 * kKiB;  // shorter files are encoded, and the error reports their tokens

// Owns the descriptor, except standard input.
class Input {
 public:
  // Does not wait for the other end of a named pipe.
  explicit Input(const std::string& path)
      : fd_(path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    if (fd_ < 0) throw_cannot_open(path, errno);
  }
  ~Input() {
    if (fd_ != STDIN_FILENO) ::close(fd_);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// Waits until there is data, or no writer. False: Ctrl-C came first.
bool wait_for_input(int fd, const std::atomic<bool>* interrupt) {
  for (;;) {
    if (interrupt != nullptr && interrupt->load(std::memory_order_relaxed)) return false;
    pollfd wanted = {fd, POLLIN, 0};
    if (::poll(&wanted, 1, kInterruptCheckMs) > 0) return true;
  }
}

std::string read_all(const std::string& path, const std::string& name, const ReadOptions& options) {
  const Input input(path);
  struct stat info = {};
  if (::fstat(input.fd(), &info) == 0 && S_ISDIR(info.st_mode))
    throw_error(ExitCode::kBadInput, name, "is a folder, not a file (a folder of documents needs a file in it)");
  if (S_ISREG(info.st_mode)) check_document_size(name, static_cast<uint64_t>(info.st_size), options.limit);
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    if (!wait_for_input(input.fd(), options.interrupt)) {
      throw_error(ExitCode::kInterrupted, name, "was not read to its end: interrupted");
    }
    const ssize_t got = ::read(input.fd(), buffer, sizeof buffer);
    if (got == 0) return text;
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) throw_error(ExitCode::kBadInput, name, str("cannot be read: ", std::strerror(errno)));
    text.append(buffer, static_cast<size_t>(got));
    check_document_size(name, text.size(), options.limit);
  }
}

// "UTF-16", by its iconv name; empty: no sign of another encoding. Without a byte order mark, Latin text has a zero in
// every second byte.
std::string wide_encoding(std::string_view text) {
  using namespace std::string_view_literals;
  if (text.starts_with("\xff\xfe\0\0"sv) || text.starts_with("\0\0\xfe\xff"sv)) return "UTF-32";
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return "UTF-16";
  const std::string_view head = text.substr(0, 256);
  size_t zeros[2] = {};
  for (size_t i = 0; i < head.size(); ++i) zeros[i % 2] += head[i] == '\0';
  const size_t pairs = head.size() / 2, most = pairs - pairs / 4;
  if (pairs == 0 || std::min(zeros[0], zeros[1]) > pairs / 4) return "";
  return zeros[1] >= most ? "UTF-16LE" : zeros[0] >= most ? "UTF-16BE" : "";
}

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
  if (const std::string encoding = wide_encoding(text); !encoding.empty()) {
    throw_error(ExitCode::kBadInput, name, "is not UTF-8 text: it looks like " + encoding,
                "Convert it: iconv -f " + encoding + " -t UTF-8");
  }
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
  throw_error(ExitCode::kBadInput, name,
              str(has, "no text of more than ", limit.bytes, " fits a context of ", limit.context_tokens, " tokens"),
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
  const std::string name = path == "-" ? "standard input" : path;
  std::string text = read_all(path, name, options);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  check_text(name, text);
  return text;
}

}  // namespace headrace
