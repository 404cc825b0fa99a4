// Files as the store uses them (docs/design.md, section 9): the owner of one descriptor, with reads and writes that
// complete or throw, O_DIRECT if the file system supports it, preallocation, and sync. Every error is Error(kStorage)
// and names file, offset and cause. Every call consults the FileFaults that a test may have installed. Thread: reads
// and writes from any; the rest from one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace headrace {

enum class FileAccess : uint8_t {
  kRead,       // must exist
  kReadWrite,  // must exist
  kCreate,     // read and write; must not exist
};
enum class FileCaching : uint8_t {
  kBuffered,
  kDirect,  // bypasses the page cache if the file system supports it
};
// kSubmit: that io_uring takes a request, for faults alone; what it refuses is reported as the read or the write.
enum class FileOp : uint8_t { kOpen, kAllocate, kRead, kWrite, kSync, kSyncFolder, kRename, kRemove, kSubmit };

class File {
 public:
  // Offsets, sizes and memory of a direct() file are multiples of this.
  static constexpr uint64_t kAlign = 4096;

  File() = default;
  static File open(const std::string& path, FileAccess access, FileCaching caching);
  // An unnamed file in `folder`: the system deletes it with its descriptor, even if the process is killed.
  static File temporary(const std::string& folder, FileCaching caching);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  explicit operator bool() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }  // a temporary file: "a file in FOLDER"
  int fd() const { return fd_; }
  bool direct() const { return direct_; }
  uint64_t size() const;

  // Reserves the space: later writes inside it cannot hit a full disk, if the file system guarantees that.
  void allocate(uint64_t bytes);
  void read(uint64_t offset, std::span<std::byte> to) const;
  void write(uint64_t offset, std::span<const std::byte> from) const;
  void sync() const;  // returns once all writes are on the disk
  // Exclusive, until the file is closed; false: another process, or another File, holds the lock.
  bool try_lock() const;

  // For other users of fd(): throws Error(kStorage) for `error`, an errno.
  [[noreturn]] void fail(FileOp op, uint64_t offset, uint64_t bytes, int error) const;

 private:
  File(std::string path, int fd, bool direct);

  std::string path_;
  int fd_ = -1;
  bool direct_ = false;
};

// Returns once files created, renamed or removed in the folder are on the disk.
void sync_folder(const std::string& folder);
// Replaces the file's content by `text`; if it throws, the old content remains. Writes to `beside`, a name in the same
// folder (overwritten if it exists), syncs and renames it. Keeps the file's permissions. Does not sync the folder.
void replace_file(const std::string& path, const std::string& beside, std::string_view text);
// A name in the folder of `path` that no other program has or can guess, for replace_file() in shared folders.
std::string unused_name(const std::string& path);
void rename_file(const std::string& from, const std::string& to);  // replaces `to`
bool remove_file(const std::string& path);                         // false: it did not exist
uint64_t folder_free_bytes(const std::string& folder);             // available to this user
// An id, equal for all folders of one mounted file system and different for others; 0: the folder does not exist.
uint64_t folder_file_system(const std::string& folder);

}  // namespace headrace
