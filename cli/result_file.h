// The file that a bench's -o names. Opened before the work: a place that cannot be written to is said at once. What the
// file held stays until there are results to take its place; a file that was made here and got none goes again.
// Owns the open file. Thread: one.
#pragma once

#include <string>

namespace headrace {

class ResultFile {
 public:
  explicit ResultFile(const std::string& path);  // empty: none
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  void write(const std::string& text);  // once, and closes it

 private:
  [[noreturn]] void fail() const;

  const std::string path_;
  int fd_ = -1;
  bool made_ = false;
};

}  // namespace headrace
