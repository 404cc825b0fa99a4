// Files that are read by offset, and small files read whole. Nothing is mapped: a file that is shortened while it is
// read is an Error, not a SIGBUS. An InputFile owns its descriptor. Errors are Error(kBadInput), of a disk that fails
// kStorage, and name the path. Thread: const methods from any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cache/base.h"

namespace headrace {

// What tells a file from another, and from what it was before it was written to.
struct FileStamp {
  std::string path;
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // no program sets the latter back; exFAT, SMB or FUSE may not keep it
  bool operator==(const FileStamp&) const = default;
};
std::optional<FileStamp> stamp_of(const std::string& path);  // none: there is no such file

// Bytes with a name, read by offset: what parsers take.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;  // in errors
  virtual uint64_t size() const = 0;
  // REQUIRES: all of them within size(). Error if they are not there any more.
  virtual void read(uint64_t offset, void* to, uint64_t bytes) const = 0;
  std::string text(uint64_t offset, uint64_t bytes) const;
};

// A part of a source.
struct ByteRange {
  const ByteSource* source = nullptr;
  uint64_t begin = 0, bytes = 0;
  std::string text() const { return source->text(begin, bytes); }
};

class InputFile final : public ByteSource {
 public:
  explicit InputFile(const std::string& path);  // Error if it is absent, unreadable or not a regular file
  ~InputFile() override;
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  const std::string& name() const override { return stamp_.path; }
  uint64_t size() const override { return stamp_.bytes; }
  void read(uint64_t offset, void* to, uint64_t bytes) const override;
  const FileStamp& stamp() const { return stamp_; }  // when it was opened

 private:
  InputFile() = default;

  int descriptor_ = -1;
  FileStamp stamp_;
};

// Borrows the bytes.
class MemoryBytes final : public ByteSource {
 public:
  MemoryBytes(std::string_view bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, void* to, uint64_t bytes) const override {
    CHECK(offset <= size() && bytes <= size() - offset, offset, " + ", bytes, " of ", size());
    if (bytes > 0) std::memcpy(to, bytes_.data() + offset, bytes);
  }

 private:
  std::string_view bytes_;
  std::string name_;
};

// The whole file, which may hold at most `max_bytes`.
std::string read_small_file(const std::string& path, uint64_t max_bytes);

// Bytes of a hostile file made fit for a message: non-printable ones as \xNN, long ones cut.
std::string printable(std::string_view bytes);

}  // namespace headrace
