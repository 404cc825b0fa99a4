// Who may include whom: the table of DESIGN section 4 as code, and a reader of #include lines that checks it.
// Pure functions of text; the one that walks a tree only reads. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace::layering {

struct Include {
  int line = 0;        // 1-based
  std::string target;  // "cache/base.h", as written between the quotes
};

// Every #include "..." of a source text, in order; those in comments and raw strings are not told apart from code but
// for // and /* */ comments, which are skipped.
std::vector<Include> quoted_includes(std::string_view text);

// Empty if `from` (a path relative to the root, "runtime/engine.cc") may include `target`; else why not.
std::string forbidden(std::string_view from, std::string_view target);

// "runtime/engine.cc:12: ..." for every edge of one file that the table does not allow.
std::vector<std::string> violations_in_text(const std::string& path, std::string_view text);

struct TreeReport {
  int files = 0, edges = 0;
  std::vector<std::string> violations;
};
// Reads every .h, .cc, .cu and .cuh under the known folders of `root`. An #include that names no file under root is a
// violation too: quotes are for our own headers, found from the root.
TreeReport check_tree(const std::string& root);

}  // namespace headrace::layering
