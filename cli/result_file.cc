#include "cli/result_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cache/base.h"

namespace headrace {

ResultFile::ResultFile(const std::string& path) : path_(path) {
  if (path.empty()) return;
  fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0 && errno == ENOENT) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
    made_ = fd_ >= 0;
  }
  if (fd_ < 0) fail();
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

}  // namespace headrace
