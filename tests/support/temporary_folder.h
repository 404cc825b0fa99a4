// A temporary folder for a test, removed with its content at the end. Header only. Thread: one.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "cache/base.h"

namespace headrace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "headrace_test_XXXXXX").string();
    CHECK(::mkdtemp(name.data()) != nullptr, "name=", name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Creates missing folders. Returns the whole path.
  std::string write(const std::string& name, std::string_view text) const {
    const std::string whole = *this / name;
    std::filesystem::create_directories(std::filesystem::path(whole).parent_path());
    std::filesystem::remove(whole);  // overwriting a file makes some file systems wait for the disk
    std::ofstream(whole, std::ios::binary) << text;
    return whole;
  }
  std::string read(const std::string& name) const {
    std::ifstream in(*this / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

 private:
  std::string path_;
};

}  // namespace headrace
