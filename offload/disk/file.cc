#include "offload/disk/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cache/base.h"
#include "offload/disk/file_faults.h"

namespace headrace {
namespace {

constexpr mode_t kMode = 0600;  // a KV cache is as private as its prompt

std::atomic<FileFaults*> the_faults{nullptr};

FileFault ask_faults(FileOp op, const std::string& path, uint64_t offset = 0, uint64_t bytes = 0) {
  FileFaults* const faults = file_faults();
  return faults == nullptr ? FileFault{} : faults->before(op, path, offset, bytes);
}

// The errno that a fault injects, or the result of `call`: 0 or an errno.
template <typename Call>
int attempt(FileOp op, const std::string& path, uint64_t bytes, const Call& call) {
  const int fault = ask_faults(op, path, 0, bytes).error;
  return fault != 0 ? fault : call();
}

int errno_of(int result) { return result < 0 ? errno : 0; }

std::string what_failed(FileOp op, uint64_t offset, uint64_t bytes) {
  switch (op) {
    case FileOp::kOpen:
      return "cannot be opened";
    case FileOp::kAllocate:
      return str("has no room for ", format_bytes(bytes));
    case FileOp::kRead:
      return str("reading ", bytes, " bytes at offset ", offset, " failed");
    case FileOp::kWrite:
      return str("writing ", bytes, " bytes at offset ", offset, " failed");
    case FileOp::kSync:
    case FileOp::kSyncFolder:
      return "cannot be synced to disk";
    case FileOp::kRename:
      return "cannot be renamed";
    case FileOp::kRemove:
      return "cannot be removed";
    case FileOp::kSubmit:
      break;  // reported as the read or the write
  }
  return "failed";
}

std::string hint_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "The disk is full: free some of it, or name another folder.";
    case EFBIG:
      return "The file would be too large: see ulimit -f and the limit of the file system.";
    case EACCES:
    case EPERM:
    case EROFS:
      return "This user may not write there: name another folder.";
    case ENOENT:
      return "The folder does not exist: create it, or name another one.";
    case ENOTDIR:
      return "The path is a file, or leads through one: name a folder.";
    case EIO:
      return "The disk or its cable may be failing: see the system's log (dmesg).";
    default:
      return "";
  }
}

[[noreturn]] void storage_error(const std::string& path, const std::string& what, int error) {
  const char* const name = ::strerrorname_np(error);
  throw_error(ExitCode::kStorage, path,
              str(what, ": ", std::strerror(error), " (", name != nullptr ? name : std::to_string(error), ")"),
              hint_for(error));
}

int open_flags(FileAccess access) {
  switch (access) {
    case FileAccess::kRead:
      return O_RDONLY | O_CLOEXEC;
    case FileAccess::kReadWrite:
      return O_RDWR | O_CLOEXEC;
    case FileAccess::kCreate:
      return O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  }
  return O_RDONLY | O_CLOEXEC;
}

struct Opened {
  int fd = -1, error = 0;
  bool direct = false;
};

// A file system without O_DIRECT returns EINVAL, possibly after it has created the file.
Opened open_at(const std::string& path, int flags, FileCaching caching) {
  Opened opened;
  opened.error = attempt(FileOp::kOpen, path, 0, [&] {
    opened.direct = caching == FileCaching::kDirect;
    opened.fd = ::open(path.c_str(), flags | (opened.direct ? O_DIRECT : 0), kMode);
    if (opened.fd < 0 && errno == EINVAL && opened.direct) {
      opened.direct = false;
      opened.fd = ::open(path.c_str(), flags & ~O_EXCL, kMode);
    }
    return errno_of(opened.fd);
  });
  return opened;
}

// For file systems without O_TMPFILE.
Opened open_and_unlink(const std::string& folder, FileCaching caching) {
  std::string name = folder + "/.headrace-XXXXXX";
  const int made = ::mkostemp(name.data(), O_CLOEXEC);
  if (made < 0) return {.fd = -1, .error = errno};
  const Opened opened = open_at(name, O_RDWR | O_CLOEXEC, caching);
  ::unlink(name.c_str());
  ::close(made);
  return opened;
}

int preallocate(int fd, uint64_t bytes) {
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error != EOPNOTSUPP && error != EINVAL) return error;
  return errno_of(::ftruncate(fd, static_cast<off_t>(bytes)));  // the fallback: no guarantee of space
}

}  // namespace

FileFaults* set_file_faults(FileFaults* faults) { return the_faults.exchange(faults); }
FileFaults* file_faults() { return the_faults.load(std::memory_order_acquire); }

File::File(std::string path, int fd, bool direct) : path_(std::move(path)), fd_(fd), direct_(direct) {}
File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), direct_(other.direct_) {}
File& File::operator=(File&& other) noexcept {
  File taken(std::move(other));
  std::swap(path_, taken.path_);
  std::swap(fd_, taken.fd_);
  std::swap(direct_, taken.direct_);
  return *this;
}
File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File File::open(const std::string& path, FileAccess access, FileCaching caching) {
  const Opened opened = open_at(path, open_flags(access), caching);
  if (opened.fd < 0) storage_error(path, what_failed(FileOp::kOpen, 0, 0), opened.error);
  return File(path, opened.fd, opened.direct);
}

File File::temporary(const std::string& folder, FileCaching caching) {
  Opened opened = open_at(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, caching);
  const bool unknown = opened.error == EOPNOTSUPP || opened.error == EISDIR || opened.error == EINVAL;
  if (opened.fd < 0 && unknown) opened = open_and_unlink(folder, caching);
  if (opened.fd < 0) storage_error(folder, "a file cannot be created in it", opened.error);
  return File("a file in " + folder, opened.fd, opened.direct);
}

void File::fail(FileOp op, uint64_t offset, uint64_t bytes, int error) const {
  storage_error(path_, what_failed(op, offset, bytes), error);
}

uint64_t File::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) < 0) storage_error(path_, "its size cannot be read", errno);
  return static_cast<uint64_t>(info.st_size);
}

void File::allocate(uint64_t bytes) {
  const int error = attempt(FileOp::kAllocate, path_, bytes, [&] { return preallocate(fd_, bytes); });
  if (error != 0) fail(FileOp::kAllocate, 0, bytes, error);
}

void File::read(uint64_t offset, std::span<std::byte> to) const {
  for (uint64_t done = 0; done < to.size();) {
    const FileFault fault = ask_faults(FileOp::kRead, path_, offset + done, to.size() - done);
    const uint64_t bytes = std::min<uint64_t>(to.size() - done, fault.at_most);
    const ssize_t got =
        fault.error != 0 ? -1 : ::pread(fd_, to.data() + done, bytes, static_cast<off_t>(offset + done));
    const int error = fault.error != 0 ? fault.error : errno;
    if (got < 0 && error == EINTR) continue;
    if (got < 0) fail(FileOp::kRead, offset, to.size(), error);
    if (got == 0) {
      throw_error(ExitCode::kStorage, path_, str("ends at ", offset + done, ", not at ", offset + to.size()),
                  "The file was truncated: remove it.");
    }
    done += static_cast<uint64_t>(got);
  }
  if (FileFaults* const faults = file_faults()) faults->after_read(path_, offset, to);
}

void File::write(uint64_t offset, std::span<const std::byte> from) const {
  for (uint64_t done = 0; done < from.size();) {
    const FileFault fault = ask_faults(FileOp::kWrite, path_, offset + done, from.size() - done);
    const uint64_t bytes = std::min<uint64_t>(from.size() - done, fault.at_most);
    const ssize_t put =
        fault.error != 0 ? -1 : ::pwrite(fd_, from.data() + done, bytes, static_cast<off_t>(offset + done));
    const int error = fault.error != 0 ? fault.error : put == 0 ? ENOSPC : errno;
    if (put < 0 && error == EINTR) continue;
    if (put <= 0) fail(FileOp::kWrite, offset, from.size(), error);
    done += static_cast<uint64_t>(put);
  }
}

void File::sync() const {
  const int error = attempt(FileOp::kSync, path_, 0, [&] { return errno_of(::fsync(fd_)); });
  if (error != 0) fail(FileOp::kSync, 0, 0, error);
}

bool File::try_lock() const {
  while (::flock(fd_, LOCK_EX | LOCK_NB) < 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) storage_error(path_, "cannot be locked", errno);
  }
  return true;
}

void sync_folder(const std::string& folder) {
  const int error = attempt(FileOp::kSyncFolder, folder, 0, [&] {
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    const int failed = errno_of(::fsync(fd));
    ::close(fd);
    return failed == EINVAL ? 0 : failed;  // the file system has nothing to sync
  });
  if (error != 0) storage_error(folder, what_failed(FileOp::kSyncFolder, 0, 0), error);
}

void rename_file(const std::string& from, const std::string& to) {
  const int error = attempt(FileOp::kRename, from, 0, [&] { return errno_of(std::rename(from.c_str(), to.c_str())); });
  if (error != 0) storage_error(from, str("cannot be renamed to ", to), error);
}

void replace_file(const std::string& path, const std::string& beside, std::string_view text) {
  remove_file(beside);
  try {
    const File file = File::open(beside, FileAccess::kCreate, FileCaching::kBuffered);
    struct stat old {};
    if (::stat(path.c_str(), &old) == 0 && ::fchmod(file.fd(), old.st_mode & 07777) != 0) {
      storage_error(beside, "cannot be given the permissions of " + path, errno);
    }
    file.write(0, std::as_bytes(std::span(text)));
    file.sync();
    rename_file(beside, path);
  } catch (...) {
    ::unlink(beside.c_str());
    throw;
  }
}

std::string unused_name(const std::string& path) {
  uint64_t number = 0;
  if (::getentropy(&number, sizeof number) != 0) storage_error(path, "a random name cannot be generated", errno);
  char text[24];
  std::snprintf(text, sizeof text, ".%016llx.tmp", static_cast<unsigned long long>(number));
  return path + text;
}

bool remove_file(const std::string& path) {
  const int error = attempt(FileOp::kRemove, path, 0, [&] { return errno_of(::unlink(path.c_str())); });
  if (error == ENOENT) return false;
  if (error != 0) storage_error(path, what_failed(FileOp::kRemove, 0, 0), error);
  return true;
}

uint64_t folder_free_bytes(const std::string& folder) {
  struct stat info {};
  struct statvfs room {};
  int error = errno_of(::stat(folder.c_str(), &info));
  if (error == 0 && !S_ISDIR(info.st_mode)) error = ENOTDIR;
  if (error == 0) error = errno_of(::statvfs(folder.c_str(), &room));
  if (error != 0) storage_error(folder, "cannot be used as a folder", error);
  return static_cast<uint64_t>(room.f_bavail) * room.f_frsize;
}

uint64_t folder_file_system(const std::string& folder) {
  struct stat info {};
  return ::stat(folder.c_str(), &info) == 0 ? info.st_dev : 0;
}

}  // namespace headrace
