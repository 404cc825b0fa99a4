#include "tests/layering/includes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace headrace::layering {
namespace {

struct Rule {
  std::string_view folder;
  std::array<std::string_view, 8> may_include;  // folders beside itself; single files are written out
};

constexpr std::string_view kBase = "cache/base.h";

// DESIGN section 4. The base header is allowed everywhere and so not repeated; nobody includes tests, bench or cli.
constexpr std::array<Rule, 7> kRules = {{
    {"cache", {}},
    {"offload", {}},
    {"kernels", {"offload"}},
    {"runtime", {"cache", "offload", "kernels"}},
    {"cli", {"runtime"}},
    {"tests", {"cache", "offload", "kernels", "runtime", "cli", "bench"}},
    {"bench", {"cache", "offload", "kernels", "runtime", "cli", "tests"}},
}};

std::string_view top_folder(std::string_view path) {
  const size_t slash = path.find('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

const Rule* rule_of(std::string_view folder) {
  for (const Rule& rule : kRules) {
    if (rule.folder == folder) return &rule;
  }
  return nullptr;
}

// The text with comments blanked out, newlines and everything else in place. String and character literals are
// stepped over, so that "http://x" opens no comment.
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

bool is_source(const std::filesystem::path& path) {
  static constexpr std::array<std::string_view, 4> kExtensions = {".h", ".cc", ".cu", ".cuh"};
  return std::find(kExtensions.begin(), kExtensions.end(), path.extension().string()) != kExtensions.end();
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

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

std::string forbidden(std::string_view from, std::string_view target) {
  const std::string_view from_folder = top_folder(from), to_folder = top_folder(target);
  const Rule* rule = rule_of(from_folder);
  if (rule == nullptr) return "'" + std::string(from_folder) + "' is no folder of the design's table";
  if (target == kBase && from != kBase) return "";
  if (rule_of(to_folder) == nullptr || target.find("..") != std::string_view::npos) {
    return "\"" + std::string(target) + "\" is not a path from the root (folder/file.h)";
  }
  if (from == kBase) return "the base header includes nothing of ours (\"" + std::string(target) + "\")";
  const auto& allowed = rule->may_include;
  if (to_folder == from_folder || std::find(allowed.begin(), allowed.end(), to_folder) != allowed.end()) return "";
  return std::string(from_folder) + " may not include " + std::string(to_folder) + " (\"" + std::string(target) + "\")";
}

std::vector<std::string> violations_in_text(const std::string& path, std::string_view text) {
  std::vector<std::string> found;
  for (const Include& include : quoted_includes(text)) {
    const std::string why = forbidden(path, include.target);
    if (!why.empty()) found.push_back(path + ":" + std::to_string(include.line) + ": " + why);
  }
  return found;
}

TreeReport check_tree(const std::string& root) {
  namespace fs = std::filesystem;
  TreeReport report;
  for (const Rule& rule : kRules) {
    const fs::path folder = fs::path(root) / rule.folder;
    if (!fs::exists(folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const std::string path = entry.path().lexically_relative(root).generic_string(), text = read_text(entry.path());
      ++report.files;
      for (const Include& include : quoted_includes(text)) {
        ++report.edges;
        const std::string at = path + ":" + std::to_string(include.line) + ": ";
        const std::string why = forbidden(path, include.target);
        if (!why.empty()) {
          report.violations.push_back(at + why);
        } else if (!fs::exists(fs::path(root) / include.target)) {
          report.violations.push_back(at + "no such file: " + include.target);
        }
      }
    }
  }
  return report;
}

}  // namespace headrace::layering
