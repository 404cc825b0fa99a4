// Who may include whom: the list in folders.txt, and a reader of #include lines that checks it. Pure functions of text;
// those that take a root read the tree below it. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace::layering {

struct Folder {
  std::string path;                // "runtime/kv"
  std::vector<std::string> needs;  // the folders that it includes directly
};
using Ladder = std::vector<Folder>;  // from the top

// "path: need need ..." for each folder; a line that begins with a space continues it. '#' begins a comment line.
Ladder parse_ladder(std::string_view text);
Ladder read_ladder(const std::string& root);  // of tests/layering/folders.txt

// What is wrong with the list alone: a folder listed twice, a need that is not in the list, that is listed twice or out
// of order, or that does not stand below its folder; where that closes a circle, the circle.
std::vector<std::string> faults(const Ladder& ladder);

struct Include {
  int line = 0;        // 1-based
  std::string target;  // "cache/base.h", as written between the quotes
};

// Every #include "..." of a source text, in order, but for those in comments.
std::vector<Include> quoted_includes(std::string_view source);

// The text with comments blanked out, newlines and everything else in place.
std::string without_comments(std::string_view text);

// Empty if `from` (a path relative to the root, "runtime/kv/kv_cache.cc") may include `target`; else why not.
std::string forbidden(const Ladder& ladder, std::string_view from, std::string_view target);

// "runtime/kv/kv_cache.cc:12: ..." for every edge of one file that the list does not allow.
std::vector<std::string> violations_in_text(const Ladder& ladder, const std::string& path, std::string_view text);

struct Source {
  std::string path, text;  // the path is relative to the root
};
// Every .h, .cc, .cu and .cuh in the folders of the list's top level, in tests/ and in bench/.
std::vector<Source> read_sources(const std::string& root, const Ladder& ladder);

struct TreeReport {
  int files = 0, edges = 0;
  std::vector<std::string> violations;
};
// Checks the list and every #include; that every need in the list is used; that each folder with sources is in the
// list, and each in the list has sources; that tests/ has no other folders than the product; and that no folder is over
// kMaxFolderLines or, where it has sub-folders of the list, over kMaxTopFiles files of its own if it is runtime/,
// offload/ or kernels/. An #include that names no file under root is a violation too: quotes are for our own headers,
// found from the root.
constexpr int kMaxFolderLines = 5000, kMaxTopFiles = 3;
TreeReport check_tree(const std::string& root, const Ladder& ladder);

}  // namespace headrace::layering
