#include "runtime/jobs.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "runtime/report.h"
#include "runtime/sha256.h"

namespace headrace {
namespace {

using nlohmann::json;

[[noreturn]] void storage_error(const std::string& path, const char* what) {
  throw_error(ExitCode::kStorage, path, str(what, ": ", std::strerror(errno)),
              errno == ENOSPC ? "Free some space and run the same command again: finished documents are kept" : "");
}

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) storage_error(path, "cannot be written");
    text.remove_prefix(static_cast<size_t>(wrote));
  }
}

// Pipes, terminals and /dev/null have nothing to sync and say EINVAL or EROFS.
void sync_file(int fd, const std::string& path) {
  if (::fsync(fd) != 0 && errno != EINVAL && errno != EROFS) storage_error(path, "cannot be synced to disk");
}

// A new or renamed file is only there after a crash if its folder was synced too.
void sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

std::string read_file(int fd, const std::string& path) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got == 0) return text;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) storage_error(path, "cannot be read");
    text.append(buffer, static_cast<size_t>(got));
  }
}

struct ResultLine {
  std::string key, file;
  bool failed = false;
};

// None if the line is no JSON object with a key.
std::optional<ResultLine> parse_line(std::string_view text) {
  const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return std::nullopt;
  const auto key = line.find("key");
  if (key == line.end() || !key->is_string()) return std::nullopt;
  const auto file = line.find("file");
  return ResultLine{key->get<std::string>(), file != line.end() && file->is_string() ? file->get<std::string>() : "",
                    line.contains("error")};
}

}  // namespace

ResultsFile::ResultsFile(const std::string& path, const std::vector<std::string>& files) : path_(path) {
  try {
    open_and_lock();
    load(files);
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

ResultsFile::~ResultsFile() {
  if (fd_ >= 0) ::close(fd_);
}

void ResultsFile::open_and_lock() {
  for (;;) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd_ < 0) storage_error(path_, "cannot be opened for writing");
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw_error(ExitCode::kUsage, path_, "is being written by another run", "Wait for it or give another -o");
    }
    // Another run may have put a cleaned file in this one's place between the opening and the lock.
    struct stat opened = {}, named = {};
    if (::fstat(fd_, &opened) == 0 && ::stat(path_.c_str(), &named) == 0 && opened.st_ino == named.st_ino) return;
    ::close(fd_);
    fd_ = -1;
  }
}

void ResultsFile::load(const std::vector<std::string>& files) {
  struct stat info = {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) return;  // a pipe or a device keeps nothing
  const std::unordered_set<std::string> retried(files.begin(), files.end());
  const std::string text = read_file(fd_, path_);
  std::string kept;
  size_t begin = 0;
  for (int64_t number = 1; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    const bool whole = end != std::string::npos;
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = whole ? end + 1 : text.size();
    if (!whole && line.starts_with('{')) break;  // a crash cut it short: its document is done again
    const std::optional<ResultLine> parsed = parse_line(line);
    if (!parsed) {
      throw_error(ExitCode::kBadInput, path_, str("line ", number, " is no result of this program"),
                  "It is left as it is; give -o another file");
    }
    if (parsed->failed && retried.contains(parsed->file)) continue;
    kept.append(line).append(1, '\n');
    if (parsed->failed) continue;
    ++done_[parsed->key];
    ++found_;
  }
  if (kept != text) rewrite(kept);
  sync_folder_of(path_);
}

// Replaces the file as a whole: a crash leaves the old one or the new one.
void ResultsFile::rewrite(const std::string& text) {
  std::error_code error;
  const std::string target = std::filesystem::canonical(path_, error).string();  // behind a link, if it is one
  const std::string temporary = target + ".tmp";
  const int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) storage_error(temporary, "cannot be opened for writing");
  try {
    struct stat old = {};
    if (::fstat(fd_, &old) == 0 && ::fchmod(fd, old.st_mode & 07777) != 0) storage_error(temporary, "cannot be set up");
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) storage_error(temporary, "cannot be locked");
    write_all(fd, text, temporary);
    sync_file(fd, temporary);
    if (error || ::rename(temporary.c_str(), target.c_str()) != 0) storage_error(path_, "cannot be replaced");
  } catch (...) {
    ::close(fd);
    ::unlink(temporary.c_str());
    throw;
  }
  ::close(fd_);
  fd_ = fd;
}

bool ResultsFile::take(const std::string& key) {
  const auto it = done_.find(key);
  if (it == done_.end() || it->second == 0) return false;
  --it->second;
  return true;
}

void ResultsFile::append(std::string line) {
  line += '\n';
  write_all(fd_, line, path_);
  sync_file(fd_, path_);
}

std::string files_stamp(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> files = {path};
  if (fs::is_directory(path, error)) {
    files.clear();
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      if (it->is_regular_file(error)) files.push_back(it->path());
    }
    std::sort(files.begin(), files.end());
  }
  std::string text = fs::weakly_canonical(path, error).string();
  for (const fs::path& file : files) {
    const auto time = fs::last_write_time(file, error).time_since_epoch().count();
    text += str("\n", file.filename().string(), " ", fs::file_size(file, error), " ", time);
  }
  return text;
}

std::string job_key(std::string_view options, std::string_view content) {
  return sha256_hex(str(options.size(), ' ', options, content.size(), ' ', content));
}

ExitCode BatchOutcome::exit_code() const {
  if (interrupted) return ExitCode::kInterrupted;
  return failed > 0 ? failure : ExitCode::kDone;
}

namespace {

enum class Outcome { kAnswered, kSkipped, kInterrupted };

Outcome run_document(const BatchOptions& batch, size_t index, std::string* key) {
  const std::string& file = batch.files[index];
  const std::string text = batch.read(file);
  *key = job_key(batch.options, text);
  if (batch.results != nullptr && batch.results->take(*key)) {
    if (batch.events.on_skipped) batch.events.on_skipped(index, file);
    return Outcome::kSkipped;
  }
  const GenerateResult result = batch.answer(file, text);
  const bool interrupted = result.finish_reason == FinishReason::kInterrupted;
  if (batch.results != nullptr && !interrupted) batch.results->append(result_json(result, {file, *key}));
  if (batch.events.on_result) batch.events.on_result(index, file, result);
  return interrupted ? Outcome::kInterrupted : Outcome::kAnswered;
}

// Memory that runs out is the document's error, as what the budgets refuse is: a shorter one may have room.
Outcome try_document(const BatchOptions& batch, size_t index, std::string* key) {
  try {
    return run_document(batch, index, key);
  } catch (const std::bad_alloc&) {
    throw_error(ExitCode::kDoesNotFit, batch.files[index], "there is no memory left for it, outside the budgets",
                "Lower --host-mem, or give the program more memory.");
  }
}

}  // namespace

BatchOutcome run_batch(const BatchOptions& batch) {
  BatchOutcome outcome;
  for (size_t index = 0; index < batch.files.size() && !outcome.interrupted; ++index) {
    const std::string& file = batch.files[index];
    if (batch.events.on_begin) batch.events.on_begin(index, file);
    std::string key;
    try {
      switch (try_document(batch, index, &key)) {
        case Outcome::kAnswered:
          ++outcome.answered;
          break;
        case Outcome::kSkipped:
          ++outcome.skipped;
          break;
        case Outcome::kInterrupted:
          outcome.interrupted = true;
          break;
      }
    } catch (const Error& error) {
      if (error.code() != ExitCode::kBadInput && error.code() != ExitCode::kDoesNotFit) throw;
      outcome.failure = outcome.failed == 0 || outcome.failure == error.code() ? error.code() : ExitCode::kBadInput;
      ++outcome.failed;
      if (key.empty()) key = job_key(batch.options, "unread file " + file);
      if (batch.results != nullptr) batch.results->append(error_json(error, {file, key}));
      if (batch.events.on_error) batch.events.on_error(index, file, error);
    }
  }
  return outcome;
}

}  // namespace headrace
