#include "runtime/text/document.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "cache/base.h"
#include "runtime/base/utf8.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

// Whether `folder` is on the path to a place, or above its first folder: a link to it leads to a folder already listed,
// or to one that contains the current place. All paths are canonical.
bool leads_back(const std::string& folder, const std::vector<std::string>& way) {
  return std::any_of(way.begin(), way.end(), [&folder](const std::string& one) {
    return one == folder || folder == "/" || one.starts_with(folder + "/");
  });
}

// The files that a run writes, and those that stdout and stderr are redirected to: by device and inode, so that every
// name of a file counts; by name if the file does not exist yet.
class FileSet {
 public:
  explicit FileSet(const std::vector<std::string>& paths) {
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
      struct stat info = {};
      if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) ids_.emplace(info.st_dev, info.st_ino);
    }
    for (const std::string& path : paths) {
      if (path.empty()) continue;
      const auto id = id_of(path);
      if (id) {
        ids_.insert(*id);
      } else {
        names_.insert(name_of(path));
      }
    }
  }
  bool contains(const std::string& path) const {
    if (ids_.empty() && names_.empty()) return false;
    const auto id = id_of(path);
    return id ? ids_.contains(*id) : names_.contains(name_of(path));
  }

 private:
  using Id = std::pair<dev_t, ino_t>;
  static std::optional<Id> id_of(const std::string& path) {
    struct stat info = {};
    return ::stat(path.c_str(), &info) == 0 ? std::optional(Id(info.st_dev, info.st_ino)) : std::nullopt;
  }
  static std::string name_of(const std::string& path) {
    std::error_code ignored;
    return fs::weakly_canonical(fs::absolute(path, ignored), ignored).string();
  }
  std::set<Id> ids_;
  std::set<std::string> names_;
};

// The files of a folder, recursively, in an order that depends on names alone.
void append_folder(const std::string& folder, const FileSet& outputs, std::vector<std::string>* skipped,
                   std::vector<std::string>* out) {
  std::vector<std::string> found;
  std::error_code error, unknown;
  std::vector<std::string> way = {fs::canonical(folder, unknown).string()};  // to the iterator's folder
  fs::recursive_directory_iterator it(folder, fs::directory_options::follow_directory_symlink, error), end;
  for (; !error && it != end; it.increment(error)) {
    const fs::path& path = it->path();
    if (it.depth() > 64)
      throw_error(ExitCode::kBadInput, folder, "has more than 64 levels of folders: " + path.string());
    way.resize(static_cast<size_t>(it.depth()) + 1);
    if (path.filename().string().starts_with('.') || outputs.contains(path.string())) {
      it.disable_recursion_pending();
    } else if (it->is_directory(unknown)) {
      way.push_back(fs::canonical(path, unknown).string());
      const std::vector<std::string> before(way.begin(), way.end() - 1);
      if (it->is_symlink(unknown) && leads_back(way.back(), before)) it.disable_recursion_pending();
    } else if (it->is_regular_file(unknown)) {
      (skipped == nullptr || is_document(path.string()) ? &found : skipped)->push_back(path.string());
    }
  }
  if (error) throw_error(ExitCode::kBadInput, folder, "cannot be listed: " + error.message());
  if (found.empty() && skipped != nullptr && !skipped->empty())
    throw_error(ExitCode::kBadInput, folder, "has no document: " + skipped_note(*skipped));
  if (found.empty()) found.push_back(folder);  // reading it reports the error
  std::sort(found.begin(), found.end());
  out->insert(out->end(), found.begin(), found.end());
}

// Why the answer needs so much room.
constexpr const char* kRoom = " (-n, and a quarter of the context at most)";

[[noreturn]] void too_long(const std::string& file, int64_t tokens, int64_t answer, int64_t context) {
  const std::string why =
      tokens < context
          ? str(" of ", context, " leaves ", context - tokens, " of ", answer, " tokens for the answer", kRoom)
          : str(" holds ", context, answer > 1 ? str(", ", answer, " of them for the answer", kRoom) : "");
  throw ContextExceeded(file,
                        str("is ", tokens, " tokens long, ", tokens + answer - context, " too many: the context", why),
                        kShortenHint);
}

// About `bytes` of the text, half from its beginning and half from its end, with a mark between them.
std::string without_middle(std::string_view text, size_t bytes) {
  size_t head = bytes / 2, tail = text.size() - bytes / 2;
  while (head > 0 && is_continuation(text[head])) --head;
  while (tail < text.size() && is_continuation(text[tail])) ++tail;
  return std::string(text.substr(0, head)) + "\n\n[...]\n\n" + std::string(text.substr(tail));
}

}  // namespace

std::vector<std::string> expand_documents(const std::vector<std::string>& paths,
                                          const std::vector<std::string>& outputs, std::vector<std::string>* skipped) {
  const FileSet written(outputs);
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (path.empty()) throw_error(ExitCode::kUsage, "documents", "one has an empty name");
    if (path != "-" && fs::is_directory(path, error)) {
      append_folder(path, written, skipped, &files);
    } else if (path == "-" || !written.contains(path)) {
      files.push_back(path);
    }
  }
  if (files.empty() && !paths.empty()) {
    throw_error(ExitCode::kUsage, paths.front(), "is a file that this run writes to, and there is no other document");
  }
  if (std::count(files.begin(), files.end(), "-") > 1) {
    throw_error(ExitCode::kUsage, "-", "standard input can be read only once");
  }
  return files;
}

DocumentPrompt document_prompt(const std::string& file, std::string_view text, const PromptRules& rules,
                               const EncodePrompt& encode) {
  const auto ids_of = [&](std::string_view body) { return encode(std::string(body) + rules.instruction); };
  const int64_t answer = std::max<int64_t>(1, rules.answer_tokens);
  const int64_t most = std::max<int64_t>(1, rules.context_tokens - answer);
  DocumentPrompt prompt{.ids = ids_of(text), .text = std::string(text)};
  prompt.whole_tokens = static_cast<int64_t>(prompt.ids.size());
  if (prompt.whole_tokens <= most) return prompt;
  if (rules.truncate == Truncate::kNone) too_long(file, prompt.whole_tokens, answer, rules.context_tokens);
  const auto wanted = static_cast<double>(most);
  const auto frame = static_cast<double>(ids_of("").size());
  if (frame + 16 > wanted) {
    throw_error(ExitCode::kBadInput, file,
                str("cannot be truncated to fit: the context holds ", rules.context_tokens, " tokens, ", answer,
                    " are kept for the answer and ", frame, " taken by the instruction"));
  }
  // Tokens are not spread evenly over a text, so each guess is corrected by its result.
  double bytes = static_cast<double>(text.size());
  const auto tokens = [&prompt] { return static_cast<double>(prompt.ids.size()); };
  for (int attempt = 0; attempt < 32 && tokens() > wanted; ++attempt) {
    bytes *= (0.999 - 0.02 * attempt) * (wanted - frame) / std::max(1.0, tokens() - frame);
    prompt.text = without_middle(text, static_cast<size_t>(bytes));
    prompt.ids = ids_of(prompt.text);
  }
  if (tokens() > wanted) throw_error(ExitCode::kBadInput, file, "cannot be truncated to fit the context");
  return prompt;
}

}  // namespace headrace
