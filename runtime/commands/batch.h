// A batch: documents answered one after the other. A rerun finds a document's line by what was asked, not by the name
// of its file. Owns nothing. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/base.h"
#include "runtime/commands/results_file.h"
#include "runtime/engine/engine.h"

namespace headrace {

// sha256 of the options and the content, each with its length, as hexadecimal.
std::string job_key(std::string_view options, std::string_view content);

// A model as text that changes when one of its files does: canonical path, and name, size and time of each file that is
// read: its weights (TensorSource::files()) and, where they are in a directory, config, tokenizer and template.
std::string files_stamp(const std::vector<FileStamp>& weights);

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
