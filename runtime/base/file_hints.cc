#include "runtime/base/file_hints.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cache/base.h"

namespace headrace {

namespace fs = std::filesystem;

std::string cannot_open(const std::string& path, int error) {
  std::error_code ignored;
  if (error == ENOENT && fs::is_symlink(path, ignored)) {
    return "is a link to " + fs::read_symlink(path, ignored).string() + ", which does not exist";
  }
  return str("cannot be opened: ", std::strerror(error));
}

void throw_cannot_open(const std::string& path, int error) {
  if (error != EMFILE && error != ENFILE) throw_error(ExitCode::kBadInput, path, cannot_open(path, error));
  throw_error(ExitCode::kDoesNotFit, path, cannot_open(path, error), "Raise the limit on open files: ulimit -n 1024");
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

void refuse_lfs_pointer(const std::string& path, std::string_view content) {
  if (content.size() > kMaxLfsPointerBytes || !content.starts_with("version https://git-lfs.github.com/spec/")) return;
  throw_error(ExitCode::kBadInput, path, "is a git-LFS pointer instead of the file itself",
              "Fetch the file: git lfs pull");
}

}  // namespace headrace
