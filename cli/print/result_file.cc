#include "cli/print/result_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "cache/base.h"

namespace headrace {

ResultFile::ResultFile(const std::string& path, std::string_view beginning) : path_(path) {
  if (path.empty()) return;
  fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0 && errno == ENOENT) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
    made_ = fd_ >= 0;
  }
  if (fd_ < 0) fail();
  try {
    if (!made_) check_own(beginning);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

// Pipes and devices have no content.
void ResultFile::check_own(std::string_view beginning) const {
  struct stat info = {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return;
  std::string head(beginning.size(), '\0');
  std::ifstream in(path_, std::ios::binary);
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  if (in && head == beginning) return;
  throw_error(ExitCode::kUsage, path_, "holds something other than an earlier result of this command",
              "It is unchanged; remove it, or give another file");
}

ResultFile::~ResultFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (made_) ::unlink(path_.c_str());
}

void ResultFile::write(const std::string& text) {
  if (fd_ < 0) return;
  if (::ftruncate(fd_, 0) != 0 && errno != EINVAL) fail();  // EINVAL: a pipe or a device
  for (size_t done = 0; done < text.size();) {
    const ssize_t here = ::write(fd_, text.data() + done, text.size() - done);
    if (here < 0 && errno != EINTR) fail();
    if (here > 0) done += static_cast<size_t>(here);
  }
  if (::close(std::exchange(fd_, -1)) != 0) fail();
}

void ResultFile::fail() const {
  throw_error(ExitCode::kStorage, path_, str("cannot be written: ", std::strerror(errno)));
}

std::string json_beginning(const std::string& program) { return "{\n \"program\": \"" + program + "\",\n"; }

}  // namespace headrace
