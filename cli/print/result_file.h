// The file that a measuring command's -o or --html names. Opened before the work, so that a place that cannot be
// written is an error at once. The file keeps what it held until there are results; a file that was made here and got
// none is removed. Owns the open file. Thread: one.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

class ResultFile {
 public:
  // An empty path: no file. `beginning` is what every result of this kind begins with: a file with other content is
  // somebody else's and stays as it is, Error(kUsage). Throws Error(kStorage) where the path cannot be written.
  ResultFile(const std::string& path, std::string_view beginning);
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  void write(const std::string& text);  // once, and closes it

 private:
  [[noreturn]] void fail() const;
  void check_own(std::string_view beginning) const;

  const std::string path_;
  int fd_ = -1;
  bool made_ = false;
};

// What the JSON of a command begins with: "headrace bench".
std::string json_beginning(const std::string& program);

}  // namespace headrace
