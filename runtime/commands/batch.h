// A batch: documents or requests answered one after the other. A rerun finds a document's line by the request, not by
// the file name. Owns nothing. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/base.h"
#include "runtime/commands/report.h"
#include "runtime/commands/results_file.h"
#include "runtime/engine/engine.h"

namespace headrace {

// SHA-256 of options and content, each with its length, in hexadecimal.
std::string job_key(std::string_view options, std::string_view content);

// A text that changes when a file of the model does: canonical path, and name, size and time of each file that is read:
// its weights (TensorSource::files()) and, in a directory, config, tokenizer and template.
std::string files_stamp(const std::vector<FileStamp>& weights);

struct BatchEvents {  // each may be empty
  std::function<void(size_t index, const std::string& file)> on_begin;
  std::function<void(size_t index, const std::string& file, const GenerateResult& result)> on_result;
  std::function<void(size_t index, const std::string& file, const Error& error)> on_error;
  std::function<void(size_t index, const std::string& file)> on_skipped;  // its line exists
};

struct BatchOptions {
  std::vector<std::string> files;  // or names of requests
  std::string options;             // everything that can change an answer, as text: part of each key
  ResultsFile* results = nullptr;  // null: nothing is written or skipped
  std::function<std::string(const std::string& file)> read;
  std::function<GenerateResult(const std::string& file, const std::string& text)> answer;
  // The lines of `results`, without newline.
  std::function<std::string(const GenerateResult& result, const LineLabel& label)> result_line = result_json;
  std::function<std::string(const Error& error, const LineLabel& label)> error_line = error_json;
  BatchEvents events;
};

struct BatchOutcome {
  int64_t answered = 0, skipped = 0, failed = 0;
  bool interrupted = false;                // the current document has no line; a rerun repeats it
  ExitCode failure = ExitCode::kBadInput;  // of all failures; kBadInput if they differ
  ExitCode exit_code() const;
};

// A document that fails (kBadInput, kDoesNotFit) is reported to on_error and gets a line with `error`; the others
// continue. Any other Error ends the batch.
BatchOutcome run_batch(const BatchOptions& options);

}  // namespace headrace
