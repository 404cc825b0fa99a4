// Reads what may have no end, and lines that may have none.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/file_hints.h"
#include "runtime/base/input_file.h"

namespace headrace {
namespace {

constexpr int kInterruptCheckMs = 100;
constexpr uint64_t kReadBytes = 64 * kKiB;

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

class OwnedBytes final : public ByteSource {
 public:
  OwnedBytes(std::string bytes, std::string name) : bytes_(std::move(bytes)), view_(bytes_, std::move(name)) {}
  const std::string& name() const override { return view_.name(); }
  uint64_t size() const override { return view_.size(); }
  void read(uint64_t offset, void* to, uint64_t bytes) const override { view_.read(offset, to, bytes); }

 private:
  const std::string bytes_;
  const MemoryBytes view_;
};

}  // namespace

std::string stream_name(const std::string& path) { return path == "-" ? "standard input" : path; }

std::string read_stream(const std::string& path, const std::function<void(uint64_t bytes)>& check,
                        const std::atomic<bool>* interrupt) {
  const std::string name = stream_name(path);
  const Input input(path);
  struct stat info = {};
  if (::fstat(input.fd(), &info) == 0 && S_ISDIR(info.st_mode))
    throw_error(ExitCode::kBadInput, name, "is a folder, not a file (a folder of documents needs a file in it)");
  std::string text;
  if (S_ISREG(info.st_mode)) {
    check(static_cast<uint64_t>(info.st_size));
    text.reserve(static_cast<size_t>(info.st_size));
  }
  char buffer[kReadBytes];
  for (;;) {
    if (!wait_for_input(input.fd(), interrupt)) {
      throw_error(ExitCode::kInterrupted, name, "was not read to its end: interrupted");
    }
    const ssize_t got = ::read(input.fd(), buffer, sizeof buffer);
    if (got == 0) return text;
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) throw_error(ExitCode::kBadInput, name, str("cannot be read: ", std::strerror(errno)));
    text.append(buffer, static_cast<size_t>(got));
    check(text.size());
  }
}

std::unique_ptr<ByteSource> open_source(const std::string& path) {
  struct stat info = {};
  if (path != "-" && (::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode))) {
    return std::make_unique<InputFile>(path);
  }
  const auto check = [&path](uint64_t bytes) {
    if (bytes <= kMaxStreamBytes) return;
    throw_error(ExitCode::kBadInput, stream_name(path),
                str("has ", bytes, " bytes or more; the limit for what is not a regular file is ", kMaxStreamBytes),
                "Write it to a file first");
  };
  return std::make_unique<OwnedBytes>(read_stream(path, check), stream_name(path));
}

bool StreamLines::fill() {
  buffer_.resize(kReadBytes);
  begin_ = 0;
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, buffer_.data(), buffer_.size());
    if (got < 0 && errno == EINTR) continue;
    buffer_.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return got > 0;
  }
}

bool StreamLines::next(std::string* line) {
  line->clear();
  while (begin_ < buffer_.size() || fill()) {
    const size_t newline = buffer_.find('\n', begin_), end = std::min(newline, buffer_.size());
    line->append(buffer_, begin_, end - begin_);
    begin_ = std::min(end + 1, buffer_.size());
    if (newline != std::string::npos) return true;
    if (line->size() > kMaxStreamBytes) {
      throw_error(ExitCode::kBadInput, "standard input",
                  str("has a line of more than ", kMaxStreamBytes, " bytes, the limit"));
    }
  }
  return !line->empty();
}

bool LineReader::fill() {
  buffer_.erase(0, begin_);
  buffer_offset_ += begin_;
  end_ -= begin_;
  begin_ = 0;
  const uint64_t place = buffer_offset_ + buffer_.size();
  const uint64_t bytes = std::min(kReadBytes, source_.size() - place);
  buffer_.resize(buffer_.size() + bytes);
  if (bytes > 0) source_.read(place, buffer_.data() + buffer_.size() - bytes, bytes);
  return bytes > 0;
}

bool LineReader::next() {
  begin_ = end_ = next_;
  ++number_;
  for (;;) {
    const size_t newline = buffer_.find('\n', end_);
    end_ = std::min(newline, buffer_.size());
    if (end_ - begin_ > max_line_bytes_) {
      throw_error(ExitCode::kBadInput, source_.name(),
                  str("line ", number_, " is longer than ", max_line_bytes_, " bytes"));
    }
    if (newline != std::string::npos) break;
    if (!fill()) break;
  }
  next_ = std::min(end_ + 1, buffer_.size());
  return next_ > begin_;
}

}  // namespace headrace
