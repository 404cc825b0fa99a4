// Files as the store uses them (docs/design.md, section 9): an owner of one descriptor with reads and writes that are
// whole or throw, O_DIRECT where the file system takes it, preallocation, and what makes a file last. Every error is
// Error(kStorage) and names file, offset and cause. Every call asks the FileFaults that a test may have put in its way.
// Thread: reads and writes from any; the rest from one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace headrace {

enum class FileAccess : uint8_t {
  kRead,       // must be there
  kReadWrite,  // must be there
  kCreate,     // read and write; must not be there
};
enum class FileCaching : uint8_t {
  kBuffered,
  kDirect,  // past the page cache, where the file system takes it
};
enum class FileOp : uint8_t { kOpen, kAllocate, kRead, kWrite, kSync, kSyncFolder, kRename, kRemove };

class File {
 public:
  // What offsets, sizes and memory are multiples of where the file is direct().
  static constexpr uint64_t kAlign = 4096;

  File() = default;
  static File open(const std::string& path, FileAccess access, FileCaching caching);
  // A file without a name, in `folder`: it goes with its descriptor, also when the process is killed.
  static File temporary(const std::string& folder, FileCaching caching);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  explicit operator bool() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }  // of a temporary file: "a file in FOLDER"
  int fd() const { return fd_; }
  bool direct() const { return direct_; }
  uint64_t size() const;

  // The space is the file's from now on: no write inside it finds the disk full, where the file system can promise so.
  void allocate(uint64_t bytes);
  void read(uint64_t offset, std::span<std::byte> to) const;
  void write(uint64_t offset, std::span<const std::byte> from) const;
  void sync() const;  // what was written is on the disk
  // Exclusive, until the file is closed; false: another process, or another File, has it.
  bool try_lock() const;

  // For what else reads and writes through fd(): throws Error(kStorage) for `error`, an errno.
  [[noreturn]] void fail(FileOp op, uint64_t offset, uint64_t bytes, int error) const;

 private:
  File(std::string path, int fd, bool direct);

  std::string path_;
  int fd_ = -1;
  bool direct_ = false;
};

// What was made, renamed or removed in a folder is on the disk.
void sync_folder(const std::string& folder);
// The file holds `text` from now on, or, where that throws, what it held: written as `beside`, a name in the same
// folder, which is replaced, brought onto the disk and renamed. The file keeps its permissions. The folder is not
// synced.
void replace_file(const std::string& path, const std::string& beside, std::string_view text);
// A name in the folder of `path` that no other program has or can guess, for replace_file() where others write, too.
std::string unused_name(const std::string& path);
void rename_file(const std::string& from, const std::string& to);  // `to` is replaced
bool remove_file(const std::string& path);                         // false: there is none
uint64_t folder_free_bytes(const std::string& folder);             // that this user may take
// The same for all folders of a file system that is mounted, and for no other; 0: there is no such folder.
uint64_t folder_file_system(const std::string& folder);

}  // namespace headrace
