// A batch: documents answered one after the other, and the file of results that survives a crash. A line is written
// with one call and synced before the next document begins; a rerun finds it again by what was asked, not by where the
// document lay. Owns the results file and its lock. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/base.h"
#include "runtime/engine.h"

namespace headrace {

// One JSON line a document (runtime/report.h). Opening it drops a line that a crash left unfinished and those with an
// error for one of `files`, which are tried again. Throws Error: kStorage for the file system, kBadInput for a
// file that holds something else than results, kUsage if another run is writing it.
class ResultsFile {
 public:
  ResultsFile(const std::string& path, const std::vector<std::string>& files);
  ~ResultsFile();
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;

  // True if a line with this key was there and is not yet taken: two equal documents need two lines.
  bool take(const std::string& key);
  void append(std::string line);  // newline added; on disk when it returns
  int64_t found() const { return found_; }

 private:
  void load(const std::vector<std::string>& files);
  void rewrite(const std::string& text);
  void open_and_lock();

  std::string path_;
  int fd_ = -1;
  int64_t found_ = 0;                              // lines with a result when opened
  std::unordered_map<std::string, int64_t> done_;  // key -> lines not yet taken
};

// sha256 of the options and the content, each with its length, as hexadecimal.
std::string job_key(std::string_view options, std::string_view content);

// The files of a model as text that changes when one of them does: canonical path, and name, size and time of each
// file. A folder's own files, not those of folders in it.
std::string files_stamp(const std::string& path);

struct BatchEvents {  // each may be empty
  std::function<void(size_t index, const std::string& file)> on_begin;
  std::function<void(size_t index, const std::string& file, const GenerateResult& result)> on_result;
  std::function<void(size_t index, const std::string& file, const Error& error)> on_error;
  std::function<void(size_t index, const std::string& file)> on_skipped;  // its line was there
};

struct BatchOptions {
  std::vector<std::string> files;
  std::string options;             // everything that changes an answer, as text: part of each key
  ResultsFile* results = nullptr;  // null: nothing is written or skipped
  std::function<std::string(const std::string& file)> read;
  std::function<GenerateResult(const std::string& file, const std::string& text)> answer;
  BatchEvents events;
};

struct BatchOutcome {
  int64_t answered = 0, skipped = 0, failed = 0;
  bool interrupted = false;                // the document then in work has no line; a rerun does it again
  ExitCode failure = ExitCode::kBadInput;  // of all that failed; kBadInput where they differ
  ExitCode exit_code() const;
};

// A document that fails (kBadInput, kDoesNotFit) is told to on_error, gets a line with `error`, and the rest go on; any
// other Error ends the batch.
BatchOutcome run_batch(const BatchOptions& options);

}  // namespace headrace
