// Files read by offset, by line or whole, each with a bound. Nothing is mapped: a file that is shortened during a read
// is an Error, not a SIGBUS. An InputFile owns its descriptor. Errors name the path: Error(kBadInput), or kStorage if
// the disk fails. Thread: const methods from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
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

// What is no regular file (pipes, /dev/zero) may have no end: all of it is read, and at most so many bytes.
constexpr uint64_t kMaxStreamBytes = uint64_t{256} << 20;
std::string stream_name(const std::string& path);  // "-": "standard input"
// The content of any file; "-": standard input. `check` is called with the bytes that there are, and throws if they are
// too many. `interrupt`: if set while the read waits for a pipe: Error(kInterrupted).
std::string read_stream(const std::string& path, const std::function<void(uint64_t bytes)>& check,
                        const std::atomic<bool>* interrupt = nullptr);
// Any file as a source: a regular one is read where it is wanted, any other now, up to kMaxStreamBytes.
std::unique_ptr<ByteSource> open_source(const std::string& path);

// The lines of standard input, each as it comes.
class StreamLines {
 public:
  // False: there are no more. Throws Error(kBadInput) for a line of more than kMaxStreamBytes.
  bool next(std::string* line);

 private:
  bool fill();  // false: the end

  std::string buffer_;
  size_t begin_ = 0;  // of what has not been taken
};

// Reads a source line by line.
class LineReader {
 public:
  // Throws Error(kBadInput) for a line of more than `max_line_bytes`. Borrows the source.
  LineReader(const ByteSource& source, uint64_t max_line_bytes) : source_(source), max_line_bytes_(max_line_bytes) {}
  bool next();  // false: there is no other line
  // Of the line, without its newline.
  std::string_view text() const { return std::string_view(buffer_).substr(begin_, end_ - begin_); }
  uint64_t offset() const { return buffer_offset_ + begin_; }
  int64_t number() const { return number_; }  // from 1

 private:
  bool fill();  // false: the source has no more

  const ByteSource& source_;
  const uint64_t max_line_bytes_;
  std::string buffer_;
  uint64_t buffer_offset_ = 0;
  size_t begin_ = 0, end_ = 0, next_ = 0;  // of the line; where the next one begins
  int64_t number_ = 0;
};

// Makes untrusted bytes printable: non-printable ones as \xNN, long ones truncated.
std::string printable(std::string_view bytes);

}  // namespace headrace
