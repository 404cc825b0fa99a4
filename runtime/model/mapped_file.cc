#include "runtime/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cache/base.h"

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

struct OpenFile {
  int descriptor = -1;
  uint64_t size = 0;
  FileStamp stamp;
  OpenFile() = default;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

void open_regular_file(const std::string& path, OpenFile* file) {
  if (path.find('\0') != std::string::npos) throw_error(ExitCode::kBadInput, printable(path), "a path with a NUL byte");
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  file->descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->descriptor < 0) throw_error(ExitCode::kBadInput, path, str("cannot be opened: ", std::strerror(errno)));
  struct stat status = {};
  if (::fstat(file->descriptor, &status) != 0)
    throw_error(ExitCode::kBadInput, path, str("cannot be examined: ", std::strerror(errno)));
  if (S_ISDIR(status.st_mode)) throw_error(ExitCode::kBadInput, path, "is a directory, not a file");
  if (!S_ISREG(status.st_mode)) throw_error(ExitCode::kBadInput, path, "is not a regular file");
  file->size = static_cast<uint64_t>(status.st_size);
  file->stamp = make_stamp(path, status);
}

}  // namespace

std::optional<FileStamp> stamp_of(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return make_stamp(path, status);
}

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  OpenFile file;
  open_regular_file(path_, &file);
  if (file.size == 0) throw_error(ExitCode::kBadInput, path_, "is empty (0 bytes)");
  void* data = ::mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.descriptor, 0);
  if (data == MAP_FAILED)
    throw_error(ExitCode::kBadInput, path_, str("cannot be mapped (", file.size, " bytes): ", std::strerror(errno)));
  data_ = static_cast<const char*>(data);
  size_ = file.size;
  stamp_ = std::move(file.stamp);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      stamp_(std::move(other.stamp_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

void MappedFile::release(uint64_t begin, uint64_t length) const {
  CHECK(begin <= size_ && length <= size_ - begin, "begin=", begin, " length=", length, " size=", size_);
  // Rounded outwards: a neighbour's page is clean too, and comes back on its next read.
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t first = begin / page * page, last = std::min<uint64_t>(round_up(begin + length, page), size_);
  if (first < last) ::madvise(const_cast<char*>(data_) + first, last - first, MADV_DONTNEED);
}

std::string read_small_file(const std::string& path, uint64_t max_bytes) {
  OpenFile file;
  open_regular_file(path, &file);
  if (file.size > max_bytes)
    throw_error(ExitCode::kBadInput, path, str("is ", file.size, " bytes; at most ", max_bytes, " are expected"));
  std::string text(file.size, '\0');
  for (size_t done = 0; done < text.size();) {
    const ssize_t got = ::read(file.descriptor, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_error(ExitCode::kBadInput, path, str("cannot be read: ", std::strerror(errno)));
    if (got == 0)
      throw_error(ExitCode::kBadInput, path, str("ends after ", done, " of ", text.size(), " bytes while being read"));
    done += static_cast<size_t>(got);
  }
  return text;
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
