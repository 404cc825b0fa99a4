#include "runtime/document.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>

#include "cache/base.h"
#include "runtime/text/utf8.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void bad_document(const std::string& file, const std::string& what, const std::string& hint = "") {
  throw_error(ExitCode::kBadInput, file, what, hint);
}

// Whether `folder` is one of the folders on the way to a place, or above the first of them: what a link to it leads to
// has been seen, or holds what it stands in. All canonical.
bool leads_back(const std::string& folder, const std::vector<std::string>& way) {
  return std::any_of(way.begin(), way.end(), [&folder](const std::string& one) {
    return one == folder || folder == "/" || one.starts_with(folder + "/");
  });
}

// The files of a folder, deepest folders included, in an order that depends on names alone.
void append_folder(const std::string& folder, std::vector<std::string>* out) {
  std::vector<std::string> found;
  std::error_code error, unknown;
  std::vector<std::string> way = {fs::canonical(folder, unknown).string()};  // to where the iterator stands
  fs::recursive_directory_iterator it(folder, fs::directory_options::follow_directory_symlink, error), end;
  for (; !error && it != end; it.increment(error)) {
    const fs::path& path = it->path();
    if (it.depth() > 64) bad_document(folder, "has more than 64 levels of folders: " + path.string());
    way.resize(static_cast<size_t>(it.depth()) + 1);
    if (path.filename().string().starts_with('.')) {
      it.disable_recursion_pending();
    } else if (it->is_directory(unknown)) {
      way.push_back(fs::canonical(path, unknown).string());
      const std::vector<std::string> before(way.begin(), way.end() - 1);
      if (it->is_symlink(unknown) && leads_back(way.back(), before)) it.disable_recursion_pending();
    } else if (it->is_regular_file(unknown)) {
      found.push_back(path.string());
    }
  }
  if (error) bad_document(folder, "cannot be listed: " + error.message());
  if (found.empty()) found.push_back(folder);  // reading it says what is wrong with it
  std::sort(found.begin(), found.end());
  out->insert(out->end(), found.begin(), found.end());
}

std::string read_all(const std::string& path) {
  const bool standard_input = path == "-";
  std::error_code error;
  if (!standard_input && fs::is_directory(path, error))
    bad_document(path, "is a folder, not a file (a folder of documents needs a file in it)");
  const auto close = [](FILE* file) { file == stdin ? 0 : std::fclose(file); };
  const std::unique_ptr<FILE, decltype(close)> file(standard_input ? stdin : std::fopen(path.c_str(), "rb"), close);
  if (file == nullptr) bad_document(path, std::string("cannot be opened: ") + std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  for (size_t got; (got = std::fread(buffer, 1, sizeof buffer, file.get())) > 0;) text.append(buffer, got);
  if (std::ferror(file.get()) != 0) bad_document(path, std::string("cannot be read: ") + std::strerror(errno));
  return text;
}

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

// What the answer is to have: who asks for rules says so.
constexpr const char* kRoom = " (-n, and a quarter of the context at most)";

[[noreturn]] void too_long(const std::string& file, int64_t tokens, int64_t answer, int64_t context) {
  const std::string why =
      tokens < context
          ? str(" of ", context, " leaves ", context - tokens, " of ", answer, " tokens for the answer", kRoom)
          : str(" holds ", context, answer > 1 ? str(", ", answer, " of them for the answer", kRoom) : "");
  bad_document(file, str("is ", tokens, " tokens long, ", tokens + answer - context, " too many: the context", why),
               "Shorten it, ask for less with -n, raise -c/--ctx-size if the model allows, or use --truncate middle");
}

// About `bytes` of the text, half from its beginning and half from its end, a mark between.
std::string without_middle(std::string_view text, size_t bytes) {
  size_t head = bytes / 2, tail = text.size() - bytes / 2;
  while (head > 0 && is_continuation(text[head])) --head;
  while (tail < text.size() && is_continuation(text[tail])) ++tail;
  return std::string(text.substr(0, head)) + "\n\n[...]\n\n" + std::string(text.substr(tail));
}

}  // namespace

std::vector<std::string> expand_documents(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (path != "-" && fs::is_directory(path, error)) {
      append_folder(path, &files);
    } else {
      files.push_back(path);
    }
  }
  if (std::count(files.begin(), files.end(), "-") > 1) {
    throw_error(ExitCode::kUsage, "-", "standard input can be read once only");
  }
  return files;
}

std::optional<size_t> first_bad_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = next_utf8(text.substr(at));
    if (unit.kind != Utf8Unit::kCharacter) return at;
    at += unit.length;
  }
  return std::nullopt;
}

std::string read_document(const std::string& path) {
  const std::string name = path == "-" ? "standard input" : path;
  std::string text = read_all(path);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  if (const std::optional<size_t> bad = first_bad_utf8(text)) {
    char byte[8];
    std::snprintf(byte, sizeof byte, "0x%02x", static_cast<unsigned>(static_cast<uint8_t>(text[*bad])));
    bad_document(name, str("is not UTF-8 text: byte ", byte, " at offset ", *bad),
                 "If it is text in another encoding, convert it: iconv -f LATIN1 -t UTF-8");
  }
  if (text.find_first_not_of(" \t\r\n\f\v") == std::string::npos) bad_document(name, "is empty");
  return text;
}

DocumentPrompt document_prompt(const std::string& file, std::string_view text, const PromptRules& rules,
                               const EncodePrompt& encode) {
  const auto ids_of = [&](std::string_view body) { return encode(std::string(body) + rules.instruction); };
  const int64_t answer = std::max<int64_t>(1, rules.answer_tokens);
  const int64_t most = std::max<int64_t>(1, rules.context_tokens - answer);
  DocumentPrompt prompt{.ids = ids_of(text)};
  prompt.whole_tokens = static_cast<int64_t>(prompt.ids.size());
  if (prompt.whole_tokens <= most) return prompt;
  if (rules.truncate == Truncate::kNone) too_long(file, prompt.whole_tokens, answer, rules.context_tokens);
  const auto wanted = static_cast<double>(most);
  const auto frame = static_cast<double>(ids_of("").size());
  if (frame + 16 > wanted) {
    bad_document(file, str("cannot be truncated to fit: the context holds ", rules.context_tokens, " tokens, ", answer,
                           " are kept for the answer and ", frame, " taken by the instruction"));
  }
  // Tokens are not spread evenly over a text, so the first guess is corrected by what it came to.
  double bytes = static_cast<double>(text.size());
  const auto tokens = [&prompt] { return static_cast<double>(prompt.ids.size()); };
  for (int attempt = 0; attempt < 32 && tokens() > wanted; ++attempt) {
    bytes *= (0.999 - 0.02 * attempt) * (wanted - frame) / std::max(1.0, tokens() - frame);
    prompt.ids = ids_of(without_middle(text, static_cast<size_t>(bytes)));
  }
  if (tokens() > wanted) bad_document(file, "cannot be truncated to fit the context");
  return prompt;
}

}  // namespace headrace
