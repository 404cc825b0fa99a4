// What is wrong with a file that a user names, for errors that say what to do about it. Reads the file system; owns
// nothing. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace headrace {

// Why the file cannot be opened, by errno: "cannot be opened: Permission denied", or, of a dangling link, where it
// leads.
std::string cannot_open(const std::string& path, int error);
// Error(kBadInput) with that text; Error(kDoesNotFit) where the process has no descriptor left.
[[noreturn]] void throw_cannot_open(const std::string& path, int error);
// Also true of a link to nothing, so that opening it names where it leads.
bool is_there(const std::string& path);
constexpr size_t kMaxLfsPointerBytes = 1023;  // "less than 1024 bytes", the format says
// Throws Error(kBadInput) where the content is that of a git-LFS pointer: what a clone without git-LFS has in the place
// of a large file.
void refuse_lfs_pointer(const std::string& path, std::string_view content);

}  // namespace headrace
