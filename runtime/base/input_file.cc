#include "runtime/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cache/base.h"
#include "runtime/base/file_hints.h"

namespace headrace {
namespace {

FileStamp make_stamp(const std::string& path, const struct stat& status) {
  const auto ns = [](const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
  return {.path = path,
          .device = status.st_dev,
          .inode = status.st_ino,
          .bytes = static_cast<uint64_t>(status.st_size),
          .modified_ns = ns(status.st_mtim),
          .changed_ns = ns(status.st_ctim)};
}

}  // namespace

std::optional<FileStamp> stamp_of(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return make_stamp(path, status);
}

std::string ByteSource::text(uint64_t offset, uint64_t bytes) const {
  std::string out(bytes, '\0');
  read(offset, out.data(), bytes);
  return out;
}

InputFile::InputFile(const std::string& path) : InputFile() {  // from here on the destructor closes the file
  if (path.find('\0') != std::string::npos) throw_error(ExitCode::kBadInput, printable(path), "a path with a NUL byte");
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status = {};
  if (descriptor_ < 0) throw_cannot_open(path, errno);
  if (::fstat(descriptor_, &status) != 0)
    throw_error(ExitCode::kBadInput, path, str("cannot be examined: ", std::strerror(errno)));
  if (S_ISDIR(status.st_mode)) throw_error(ExitCode::kBadInput, path, "is a directory, not a file");
  if (!S_ISREG(status.st_mode)) throw_error(ExitCode::kBadInput, path, "is not a regular file");
  stamp_ = make_stamp(path, status);
  char head[kMaxLfsPointerBytes];
  if (stamp_.bytes > sizeof head) return;
  const ssize_t got = ::pread(descriptor_, head, sizeof head, 0);
  if (got > 0) refuse_lfs_pointer(path, {head, static_cast<size_t>(got)});
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), stamp_(std::move(other.stamp_)) {}

void InputFile::read(uint64_t offset, void* to, uint64_t bytes) const {
  CHECK(offset <= size() && bytes <= size() - offset, offset, " + ", bytes, " of ", size(), " in ", name());
  char* const out = static_cast<char*>(to);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(descriptor_, out + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw_error(ExitCode::kStorage, name(),
                  str("cannot be read at byte ", offset + done, ": ", std::strerror(errno)));
    if (got == 0) {
      struct stat now = {};
      ::fstat(descriptor_, &now);
      throw_error(ExitCode::kBadInput, name(),
                  str("has ", now.st_size, " bytes; it had ", size(), " when it was opened"),
                  "Another program shortened it. Run the command again once nothing writes to the file.");
    }
    done += static_cast<uint64_t>(got);
  }
}

std::string read_small_file(const std::string& path, uint64_t max_bytes) {
  const InputFile file(path);
  if (file.size() > max_bytes)
    throw_error(ExitCode::kBadInput, path, str("is ", file.size(), " bytes; at most ", max_bytes, " are expected"));
  return file.text(0, file.size());
}

std::string printable(std::string_view bytes) {
  constexpr size_t kMaxBytes = 96;
  std::string text;
  for (const char c : bytes.substr(0, kMaxBytes)) {
    if (c >= 0x20 && c < 0x7f) {
      text += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      text += escaped;
    }
  }
  if (bytes.size() > kMaxBytes) text += str("... (", bytes.size(), " bytes)");
  return text;
}

}  // namespace headrace
