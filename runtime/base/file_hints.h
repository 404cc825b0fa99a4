// Explains what is wrong with a file that a user names, for errors with a hint. Reads the file system; owns nothing.
// Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace headrace {

// The reason by errno: "cannot be opened: Permission denied". For a dangling link also its target.
std::string cannot_open(const std::string& path, int error);
// Throws Error(kBadInput) with that text; Error(kDoesNotFit) if the process has no descriptor left.
[[noreturn]] void throw_cannot_open(const std::string& path, int error);
// True for a dangling link too, so that opening it reports its target.
bool is_there(const std::string& path);
constexpr size_t kMaxLfsPointerBytes = 1023;  // the format requires less than 1024 bytes
// Throws Error(kBadInput) if the content is a git-LFS pointer, which a clone without git-LFS has instead of a large
// file.
void refuse_lfs_pointer(const std::string& path, std::string_view content);

}  // namespace headrace
