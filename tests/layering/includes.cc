#include "tests/layering/includes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace headrace::layering {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBase = "cache/base.h";  // open to every folder, and includes nothing of ours
// They include everything, and only they and their own kind include them; tests/ has more folders than the product.
constexpr std::array<std::string_view, 2> kAbove = {"tests", "bench"};
constexpr std::array<std::string_view, 5> kOwnOfTests = {"tests/layering", "tests/support", "tests/tools", "tests/fuzz",
                                                         "tests/data"};
constexpr std::array<std::string_view, 3> kFewFiles = {"runtime", "offload", "kernels"};

std::string_view folder_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

bool within(std::string_view path, std::string_view folder) {
  return path == folder ||
         (path.size() > folder.size() && path.substr(0, folder.size()) == folder && path[folder.size()] == '/');
}

template <typename Folders>
bool within_any(std::string_view path, const Folders& folders) {
  return std::any_of(folders.begin(), folders.end(), [&](const auto& folder) { return within(path, folder); });
}

// Its place in the list; the list's size if it is not in it.
size_t place(const Ladder& ladder, std::string_view folder) {
  const auto at = std::find_if(ladder.begin(), ladder.end(), [&](const Folder& f) { return f.path == folder; });
  return static_cast<size_t>(at - ladder.begin());
}

// " -> a -> b" from the needs of `from` to `to`; empty if there is no way. `seen` has the folders without one.
std::string way(const Ladder& ladder, size_t from, std::string_view to, std::set<std::string>* seen) {
  if (from == ladder.size() || !seen->insert(ladder[from].path).second) return "";
  for (const std::string& need : ladder[from].needs) {
    const std::string rest = need == to ? "" : way(ladder, place(ladder, need), to, seen);
    if (need == to || !rest.empty()) return " -> " + need + rest;
  }
  return "";
}

// What is wrong with the need number `i` of the folder at `at`; empty if nothing is.
std::string fault_of_need(const Ladder& ladder, size_t at, size_t i) {
  const Folder& folder = ladder[at];
  const std::string& need = folder.needs[i];
  const size_t below = place(ladder, need);
  if (below == ladder.size()) return folder.path + " needs " + need + ", which is not in the list";
  if (below <= at) {
    std::set<std::string> seen;
    const std::string back = below == at ? "" : way(ladder, below, folder.path, &seen);
    return below < at && back.empty() ? folder.path + " needs " + need + ", which stands above it"
                                      : "a circle: " + folder.path + " -> " + need + back;
  }
  if (i > 0 && place(ladder, folder.needs[i - 1]) >= below) {
    return folder.path + " needs " + need + ", which is listed twice or out of order";
  }
  return "";
}

bool is_source(const fs::path& path) {
  static constexpr std::array<std::string_view, 4> kExtensions = {".h", ".cc", ".cu", ".cuh"};
  return std::find(kExtensions.begin(), kExtensions.end(), path.extension().string()) != kExtensions.end();
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

using Edges = std::set<std::pair<std::string, std::string>>;  // from a folder to a folder

void check_edges(const std::string& root, const Ladder& ladder, const Source& source, Edges* used, TreeReport* report) {
  for (const Include& include : quoted_includes(source.text)) {
    ++report->edges;
    if (include.target != kBase) used->emplace(folder_of(source.path), folder_of(include.target));
    const std::string at = source.path + ":" + std::to_string(include.line) + ": ";
    const std::string why = forbidden(ladder, source.path, include.target);
    if (!why.empty()) {
      report->violations.push_back(at + why);
    } else if (!fs::exists(fs::path(root) / include.target)) {
      report->violations.push_back(at + "no such file: " + include.target);
    }
  }
}

void check_needs(const Ladder& ladder, const Edges& used, std::vector<std::string>* out) {
  for (const Folder& folder : ladder) {
    for (const std::string& need : folder.needs) {
      if (used.count({folder.path, need}) == 0) out->push_back(folder.path + " needs " + need + ": nothing uses it");
    }
  }
}

struct Size {
  int files = 0;
  int64_t lines = 0;
};

void check_folders(const Ladder& ladder, const std::map<std::string, Size>& sizes, std::vector<std::string>* out) {
  for (const auto& [folder, size] : sizes) {
    if (within(folder, "bench") || within_any(folder, kOwnOfTests)) continue;
    const bool test = within(folder, "tests");
    const std::string_view product = test ? std::string_view(folder).substr(6) : std::string_view(folder);
    if (place(ladder, product) == ladder.size()) {
      out->push_back(folder + ": not a folder of tests/layering/folders.txt");
    }
    if (test) continue;
    if (size.lines > kMaxFolderLines) {
      out->push_back(folder + ": " + std::to_string(size.lines) + " lines, more than " +
                     std::to_string(kMaxFolderLines) + ": divide it");
    }
    if (size.files > kMaxTopFiles && std::find(kFewFiles.begin(), kFewFiles.end(), folder) != kFewFiles.end()) {
      out->push_back(folder + ": " + std::to_string(size.files) + " files beside its folders, more than " +
                     std::to_string(kMaxTopFiles));
    }
  }
  for (const Folder& folder : ladder) {
    if (sizes.count(folder.path) == 0) out->push_back(folder.path + ": in the list, but it has no sources");
  }
}

}  // namespace

Ladder parse_ladder(std::string_view text) {
  Ladder ladder;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string word;
    if (line.front() != ' ' && words >> word) ladder.push_back({word.substr(0, word.find(':')), {}});
    while (!ladder.empty() && words >> word) ladder.back().needs.push_back(word);
  }
  return ladder;
}

std::vector<std::string> faults(const Ladder& ladder) {
  std::vector<std::string> found;
  for (size_t at = 0; at < ladder.size(); ++at) {
    if (place(ladder, ladder[at].path) != at) found.push_back(ladder[at].path + ": listed twice");
    for (size_t i = 0; i < ladder[at].needs.size(); ++i) {
      const std::string fault = fault_of_need(ladder, at, i);
      if (!fault.empty()) found.push_back(fault);
    }
  }
  return found;
}

Ladder read_ladder(const std::string& root) {
  return parse_ladder(read_text(fs::path(root) / "tests/layering/folders.txt"));
}

// String and character literals are stepped over, so that "http://x" opens no comment.
std::string without_comments(std::string_view text) {
  std::string out(text);
  char quote = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (quote != 0) {
      if (out[i] == '\\') {
        ++i;
      } else if (out[i] == quote || out[i] == '\n') {
        quote = 0;
      }
    } else if (out[i] == '"' ||
               (out[i] == '\'' && (i == 0 || std::isalnum(static_cast<unsigned char>(out[i - 1])) == 0))) {
      quote = out[i];
    } else if (out.compare(i, 2, "//") == 0) {
      for (; i < out.size() && out[i] != '\n'; ++i) out[i] = ' ';
    } else if (out.compare(i, 2, "/*") == 0) {
      const size_t end = std::min(out.size(), out.find("*/", i + 2));
      for (; i < out.size() && i < end + 2; ++i) {
        if (out[i] != '\n') out[i] = ' ';
      }
      --i;
    }
  }
  return out;
}

std::vector<Include> quoted_includes(std::string_view source) {
  const std::string text = without_comments(source);
  std::vector<Include> found;
  int line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view row = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    const auto skip = [&](size_t at) { return std::min(row.find_first_not_of(" \t", at), row.size()); };
    size_t at = skip(0);
    if (at >= row.size() || row[at] != '#') continue;
    at = skip(at + 1);
    if (row.substr(at, 7) != "include") continue;
    at = skip(at + 7);
    if (at >= row.size() || row[at] != '"') continue;
    const size_t close = row.find('"', at + 1);
    if (close != std::string_view::npos) found.push_back({line, std::string(row.substr(at + 1, close - at - 1))});
  }
  return found;
}

std::string forbidden(const Ladder& ladder, std::string_view from, std::string_view target) {
  const std::string_view from_folder = folder_of(from), to_folder = folder_of(target);
  const std::string quoted = " (\"" + std::string(target) + "\")";
  if (target.find("..") != std::string_view::npos || to_folder.empty()) {
    return "\"" + std::string(target) + "\" is not a path from the root (folder/file.h)";
  }
  if (within_any(from_folder, kAbove)) return "";
  const size_t from_place = place(ladder, from_folder);
  if (from_place == ladder.size()) return "'" + std::string(from_folder) + "' is not a folder of the list";
  if (from == kBase) return "the base header includes nothing of ours" + quoted;
  if (target == kBase || to_folder == from_folder) return "";
  const std::string edge = std::string(from_folder) + " may not include " + std::string(to_folder) + quoted;
  if (place(ladder, to_folder) == ladder.size()) return edge + ": it is not a folder of the list";
  const std::vector<std::string>& needs = ladder[from_place].needs;
  return std::find(needs.begin(), needs.end(), to_folder) != needs.end() ? "" : edge + ": the list has no such need";
}

std::vector<std::string> violations_in_text(const Ladder& ladder, const std::string& path, std::string_view text) {
  std::vector<std::string> found;
  for (const Include& include : quoted_includes(text)) {
    const std::string why = forbidden(ladder, path, include.target);
    if (!why.empty()) found.push_back(path + ":" + std::to_string(include.line) + ": " + why);
  }
  return found;
}

std::vector<Source> read_sources(const std::string& root, const Ladder& ladder) {
  std::set<std::string> tops(kAbove.begin(), kAbove.end());
  for (const Folder& folder : ladder) tops.insert(folder.path.substr(0, folder.path.find('/')));
  std::vector<Source> sources;
  for (const std::string& top : tops) {
    const fs::path folder = fs::path(root) / top;
    if (!fs::exists(folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      sources.push_back({entry.path().lexically_relative(root).generic_string(), read_text(entry.path())});
    }
  }
  return sources;
}

TreeReport check_tree(const std::string& root, const Ladder& ladder) {
  TreeReport report;
  report.violations = faults(ladder);
  Edges used;
  std::map<std::string, Size> sizes;
  for (const Source& source : read_sources(root, ladder)) {
    ++report.files;
    Size& size = sizes[std::string(folder_of(source.path))];
    ++size.files;
    size.lines += std::count(source.text.begin(), source.text.end(), '\n');
    check_edges(root, ladder, source, &used, &report);
  }
  check_needs(ladder, used, &report.violations);
  check_folders(ladder, sizes, &report.violations);
  return report;
}

}  // namespace headrace::layering
