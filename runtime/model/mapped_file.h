// A regular file mapped read-only, and small files read whole. A MappedFile owns its mapping; views of bytes() must not
// outlive it. Errors are Error(kBadInput) and name the path. Thread: const methods from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

// What tells a file from another, and from what it was before it was written to.
struct FileStamp {
  std::string path;
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // no program sets the latter back; exFAT, SMB or FUSE may not keep it
  bool operator==(const FileStamp&) const = default;
};
std::optional<FileStamp> stamp_of(const std::string& path);  // none: there is no such file

class MappedFile {
 public:
  explicit MappedFile(std::string path);  // Error if it is absent, unreadable, empty or not a regular file
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {data_, size_}; }
  const FileStamp& stamp() const { return stamp_; }  // when it was mapped
  // Drops these bytes' pages from the process; a later read faults them in again from the file.
  void release(uint64_t begin, uint64_t length) const;

 private:
  std::string path_;
  FileStamp stamp_;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

// The whole file, which may hold at most `max_bytes`.
std::string read_small_file(const std::string& path, uint64_t max_bytes);

// Bytes of a hostile file made fit for a message: non-printable ones as \xNN, long ones cut.
std::string printable(std::string_view bytes);

}  // namespace headrace
