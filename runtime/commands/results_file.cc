#include "runtime/commands/results_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "cache/base.h"
#include "offload/disk/file.h"
#include "runtime/base/json_file.h"

namespace headrace {
namespace {

using nlohmann::json;

[[noreturn]] void storage_error(const std::string& path, const char* what) {
  std::string hint;
  if (errno == ENOSPC || errno == EDQUOT)
    hint = "Free some space and run the same command again: finished documents are kept";
  if (errno == EFBIG)
    hint = "Raise the limit on a file's size (ulimit -f) and run the same command again: finished documents are kept";
  throw_error(ExitCode::kStorage, path, str(what, ": ", std::strerror(errno)), hint);
}

[[noreturn]] void foreign(const std::string& path, int64_t line) {
  throw_error(ExitCode::kBadInput, path, str("line ", line, " is not a result line of this program"),
              "It is unchanged; give -o another file");
}

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) storage_error(path, "cannot be written");
    text.remove_prefix(static_cast<size_t>(wrote));
  }
}

// Pipes, terminals and /dev/null have nothing to sync and return EINVAL or EROFS.
void sync_file(int fd, const std::string& path) {
  if (::fsync(fd) != 0 && errno != EINVAL && errno != EROFS) storage_error(path, "cannot be synced to disk");
}

// After a crash a new or renamed file exists only if its folder was synced too.
void sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  try {
    sync_folder(folder.empty() ? "." : folder);
  } catch (const Error&) {  // a folder that this user may not read
  }
}

// Reads the file from its beginning, in parts.
void read_file(int fd, const std::string& path, const std::function<void(std::string_view)>& on_part) {
  char buffer[1 << 16];
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(fd, buffer, sizeof buffer, at);
    if (got == 0) return;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) storage_error(path, "cannot be read");
    on_part({buffer, static_cast<size_t>(got)});
    at += got;
  }
}

bool same_file(int fd, const std::string& path) {
  struct stat opened = {}, named = {};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

uint64_t size_of(int fd, const std::string& path) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) storage_error(path, "its size cannot be read");
  return static_cast<uint64_t>(info.st_size);
}

// ---- lines ----------------------------------------------------------------------------------------------------------

bool is_hex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

// Whether `text` may be the start of a line from result_json() or error_json().
bool may_begin_document_line(std::string_view text) {
  LineStart at(text);
  if (!at.literal("{\"file\":\"") || !at.string() || !at.literal("\",\"key\":\"") || !at.key()) return false;
  LineStart other = at;
  return at.literal("\",\"text\":\"") || other.literal("\",\"error\":\"");
}

std::string_view without_nuls(std::string_view text) { return text.substr(0, text.find_last_not_of('\0') + 1); }

std::optional<ResultLine> parse_document_line(std::string_view text) {
  if (!may_begin_document_line(text)) return std::nullopt;
  const json line = json_or_null(text);
  if (!line.is_object()) return std::nullopt;
  const auto value = [&line](const char* name) {
    const auto found = line.find(name);
    return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  ResultLine result{value("key"), value("file"), line.contains("error")};
  const bool ours = result.key.size() == kKeyDigits && is_hex(result.key) && (result.failed || line.contains("text"));
  return ours ? std::optional(result) : std::nullopt;
}

}  // namespace

bool LineStart::literal(std::string_view expected) {
  const size_t length = std::min(expected.size(), rest_.size());
  const bool equal = rest_.substr(0, length) == expected.substr(0, length);
  rest_.remove_prefix(length);
  return equal;
}

bool LineStart::key() {
  const std::string_view digits = rest_.substr(0, kKeyDigits);
  rest_.remove_prefix(digits.size());
  return is_hex(digits);
}

bool LineStart::string() {
  size_t end = 0;
  while (end < rest_.size() && rest_[end] != '"') {
    if (static_cast<uint8_t>(rest_[end]) < 0x20) return false;
    end += rest_[end] == '\\' ? 2 : 1;
  }
  rest_.remove_prefix(std::min(end, rest_.size()));
  return true;
}

const LineForm& document_lines() {
  static const LineForm form{may_begin_document_line, parse_document_line};
  return form;
}

std::string name_in_line(const std::string& name) {
  return json::parse(json(name).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

// ---- the file -------------------------------------------------------------------------------------------------------

ResultsFile::ResultsFile(const std::string& path, const std::vector<std::string>& names, const LineForm& form)
    : path_(path), form_(form) {
  try {
    open_and_lock();
    load(names);
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

ResultsFile::~ResultsFile() {
  std::error_code error;
  if (made_ && !began_ && same_file(fd_, path_))
    std::filesystem::remove(std::filesystem::canonical(path_, error), error);
  if (fd_ >= 0) ::close(fd_);
}

void ResultsFile::open_and_lock() {
  if (path_ == kStandardOutput) {
    fd_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    if (fd_ < 0) storage_error("standard output", "cannot be written");
    return;
  }
  for (;;) {
    made_ = ::access(path_.c_str(), F_OK) != 0;
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd_ < 0) storage_error(path_, "cannot be opened for writing");
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw_error(ExitCode::kUsage, path_, "is being written by another run", "Wait for it or give another -o");
    }
    // Another run may have replaced the file between the opening and the lock.
    if (same_file(fd_, path_)) return;
    ::close(fd_);
    fd_ = -1;
  }
}

void ResultsFile::load(const std::vector<std::string>& names) {
  if (path_ == kStandardOutput) return;
  struct stat info = {};
  regular_ = ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
  if (!regular_) return;
  std::unordered_set<std::string> retried;
  for (const std::string& name : names) retried.insert(name_in_line(name));
  int64_t number = 1;
  uint64_t begin = 0;  // of the current line
  const auto take_line = [&](const ResultLine& line, uint64_t end) {
    if (line.failed && retried.contains(line.name)) {
      dropped_.emplace_back(begin, end);
    } else {
      end_ = end;
      if (line.failed) return;
      ++done_[line.key], ++found_;
      keys_[line.name] = line.key;
    }
  };
  std::string pending;  // the current line, without its newline yet
  read_file(fd_, path_, [&](std::string_view part) {
    bytes_ += part.size();
    size_t from = 0, search = pending.size();  // the pending part has no newline
    const bool zeros = without_nuls(part).empty();
    pending += part;
    for (size_t end; (end = pending.find('\n', search)) != std::string::npos; search = from = end + 1, ++number) {
      const std::optional<ResultLine> line = form_.parse(std::string_view(pending).substr(from, end - from));
      if (!line) foreign(path_, number);
      take_line(*line, begin + end - from + 1);
      begin += end - from + 1;
    }
    pending.erase(0, from);
    // Zeros after the start of a line are allowed.
    if (pending.size() > kMaxResultBytes || (!zeros && !form_.may_begin(without_nuls(pending)))) foreign(path_, number);
  });
  // A crash can leave the start of a line, and zeros instead of unwritten bytes.
  const std::string_view last = without_nuls(pending);
  if (const std::optional<ResultLine> line = form_.parse(last)) {
    take_line(*line, begin + last.size());
    lacks_newline_ = end_ == begin + last.size();
  }
  std::erase_if(dropped_, [this](const auto& range) { return range.first >= end_; });
}

void ResultsFile::check_unchanged() const {
  if (path_ == kStandardOutput) return;
  const char* const hint = "Run the same command again: it answers the documents that the file at this path lacks";
  if (!same_file(fd_, path_)) {
    throw_error(ExitCode::kStorage, path_, "was replaced or removed while this run wrote to it; no more is written",
                hint);
  }
  if (regular_ && size_of(fd_, path_) != bytes_) {
    throw_error(ExitCode::kStorage, path_,
                str("was changed by another program: it has ", size_of(fd_, path_), " bytes instead of ", bytes_,
                    "; no more is written"),
                hint);
  }
}

void ResultsFile::begin() {
  began_ = true;
  if (!regular_) return;
  check_unchanged();
  if (end_ < bytes_ && ::ftruncate(fd_, static_cast<off_t>(end_)) != 0) {
    storage_error(path_, "cannot be truncated to its last complete line");
  }
  if (lacks_newline_) write_all(fd_, "\n", path_);
  if (!dropped_.empty()) drop_lines();
  bytes_ = size_of(fd_, path_);
  sync_file(fd_, path_);
  sync_folder_of(path_);
}

// Replaces the whole file: a crash leaves the old one or the new one.
void ResultsFile::drop_lines() {
  std::string text;
  read_file(fd_, path_, [&text](std::string_view part) { text += part; });
  for (auto range = dropped_.rbegin(); range != dropped_.rend(); ++range) {
    text.erase(range->first, range->second - range->first);
  }
  try {
    std::error_code error;
    const std::string target = std::filesystem::canonical(path_, error).string();  // the target of a link
    if (error) return;
    replace_file(target, unused_name(target), text);
  } catch (const Error&) {
    return;  // this user may not write to the folder: old error lines do no harm
  }
  ::close(fd_);
  open_and_lock();
}

const std::string* ResultsFile::key_of(const std::string& name) const {
  const auto it = keys_.find(name_in_line(name));
  return it == keys_.end() ? nullptr : &it->second;
}

bool ResultsFile::take(const std::string& key) {
  const auto it = done_.find(key);
  if (it == done_.end() || it->second == 0) return false;
  --it->second;
  return true;
}

void ResultsFile::append(std::string line) {
  CHECK(began_);
  check_unchanged();
  line += '\n';
  write_all(fd_, line, path_);
  bytes_ += line.size();
  sync_file(fd_, path_);
}

}  // namespace headrace
