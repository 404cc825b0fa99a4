// Files read by offset, and small files read whole. Nothing is mapped: a file that is shortened during a read is an
// Error, not a SIGBUS. An InputFile owns its descriptor. Errors name the path: Error(kBadInput), or kStorage if the
// disk fails. Thread: const methods from any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cache/base.h"

namespace headrace {

// Identifies a file and its version.
struct FileStamp {
  std::string path;
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // programs cannot set changed_ns back; exFAT, SMB or FUSE may not keep it
  bool operator==(const FileStamp&) const = default;
};
std::optional<FileStamp> stamp_of(const std::string& path);  // none: the file does not exist

// Bytes with a name, read by offset: the input of parsers.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;  // for errors
  virtual uint64_t size() const = 0;
  // REQUIRES: the range is within size(). Throws Error if the file has become shorter.
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
  const FileStamp& stamp() const { return stamp_; }  // taken when it was opened

 private:
  InputFile() = default;

  int descriptor_ = -1;
  FileStamp stamp_;
};

// A source over borrowed bytes.
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

// Reads the whole file, of at most `max_bytes`.
std::string read_small_file(const std::string& path, uint64_t max_bytes);

// Makes untrusted bytes printable: non-printable ones as \xNN, long ones truncated.
std::string printable(std::string_view bytes);

}  // namespace headrace
