// The file of a measuring command's -o or --html. Opened before the work, so that an unwritable path is an error at
// once. The file keeps its content until there are results; if it was created here and gets none, it is removed. Owns
// the open file. Thread: one.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

class ResultFile {
 public:
  // An empty path: no file. Every result of this kind starts with `beginning`: a file with other content belongs to
  // somebody else and stays unchanged, Error(kUsage). Throws Error(kStorage) if the path cannot be written.
  ResultFile(const std::string& path, std::string_view beginning);
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  void write(const std::string& text);  // once; closes the file

 private:
  [[noreturn]] void fail() const;
  void check_own(std::string_view beginning) const;

  const std::string path_;
  int fd_ = -1;
  bool made_ = false;
};

// The start of a command's JSON: "headrace bench".
std::string json_beginning(const std::string& program);

}  // namespace headrace
