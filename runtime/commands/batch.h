// A batch: documents or requests answered by one engine, or by several that share a queue. A rerun finds a document's
// line by the request, not by the file name. Owns the threads of the engines but the first, which runs on the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/base.h"
#include "offload/host/thread_annotations.h"
#include "runtime/commands/report.h"
#include "runtime/commands/results_file.h"
#include "runtime/engine/engine.h"

namespace headrace {

// SHA-256 of options and content, each with its length, in hexadecimal.
std::string job_key(std::string_view options, std::string_view content);

// A text that changes when a file of the model does: canonical path, and name, size and time of each file that is read:
// its weights (TensorSource::files()) and, in a directory, config, tokenizer and template.
std::string files_stamp(const std::vector<FileStamp>& weights);

struct BatchJob {
  size_t index, engine;
  const std::string& file;  // BatchOptions::files[index]
};

struct BatchEvents {  // each may be empty
  std::function<void(const BatchJob& job)> on_begin;
  std::function<void(const BatchJob& job, const GenerateResult& result)> on_result;
  std::function<void(const BatchJob& job, const Error& error)> on_error;
  std::function<void(const BatchJob& job)> on_skipped;                       // its line exists
  std::function<void(const BatchJob& job, const std::string& why)> on_lost;  // the job's engine failed; others continue
};

struct BatchOptions {
  std::vector<std::string> files;  // or names of requests
  std::string options;             // everything that can change an answer, as text: part of each key
  ResultsFile* results = nullptr;  // null: nothing is written or skipped
  size_t engines = 1;
  std::vector<size_t> shared{};  // RequestQueue's, one for each file; empty: neighbours share nothing
  // Locked while any other function than read() and answer() is called, which lock it themselves for what the engines
  // share. Null: a mutex of run_batch().
  Mutex* mutex = nullptr;
  // On the engine's thread. An engine is lost if its answer() throws anything that is not an Error of the document
  // (kBadInput, kDoesNotFit), kInterrupted or std::bad_alloc.
  std::function<std::string(const BatchJob& job)> read;
  std::function<GenerateResult(const BatchJob& job, const std::string& text)> answer;
  // The lines of `results`, without newline. Empty: result_json() and error_json().
  std::function<std::string(const BatchJob& job, const GenerateResult& result, const std::string& key)> result_line;
  std::function<std::string(const BatchJob& job, const Error& error, const std::string& key)> error_line;
  BatchEvents events;
};

struct EngineOutcome {
  int64_t answered = 0;
  bool lost = false;
};

struct BatchOutcome {
  int64_t answered = 0, skipped = 0, failed = 0;
  bool interrupted = false;                // documents in work have no line; a rerun repeats them
  ExitCode failure = ExitCode::kBadInput;  // of all failures; kBadInput if they differ
  std::vector<EngineOutcome> engines;
  ExitCode exit_code() const;
};

// A document that fails (kBadInput, kDoesNotFit) is reported to on_error and gets a line with `error`; the others
// continue. A lost engine's document is put back into the queue once; if another engine is lost with it, it fails. The
// last engine that is lost ends the batch with its exception, and so does any other Error, after the other engines have
// finished their documents.
BatchOutcome run_batch(const BatchOptions& options);

}  // namespace headrace
