#include "runtime/commands/batch.h"

#include <filesystem>
#include <iterator>
#include <new>
#include <set>

#include "runtime/base/sha256.h"
#include "runtime/model/files/hf_directory.h"

namespace headrace {

namespace fs = std::filesystem;

std::string files_stamp(const std::vector<FileStamp>& weights) {
  if (weights.empty()) return "";
  std::error_code error;
  std::set<fs::path> files;
  for (const FileStamp& file : weights) files.insert(file.path);
  fs::path model = *files.begin();
  if (model.extension() != ".gguf") {
    model = model.parent_path();
    for (const char* name : kModelTextFiles) {
      if (fs::exists(model / name, error)) files.insert(model / name);
    }
    if (files.contains(model / kModelTextFiles[0])) files.erase(model / *std::rbegin(kModelTextFiles));
  }
  std::string text = fs::weakly_canonical(model, error).string();
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
  if (batch.results != nullptr && !interrupted) batch.results->append(batch.result_line(result, {file, *key}));
  if (batch.events.on_result) batch.events.on_result(index, file, result);
  return interrupted ? Outcome::kInterrupted : Outcome::kAnswered;
}

// Running out of memory fails the document, as exceeding a budget does: a shorter document may fit.
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
  if (batch.results != nullptr) batch.results->begin();
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
      if (error.code() == ExitCode::kInterrupted) {
        outcome.interrupted = true;
        break;
      }
      if (error.code() != ExitCode::kBadInput && error.code() != ExitCode::kDoesNotFit) throw;
      outcome.failure = outcome.failed == 0 || outcome.failure == error.code() ? error.code() : ExitCode::kBadInput;
      ++outcome.failed;
      if (key.empty()) key = job_key(batch.options, "unread file " + file);
      if (batch.results != nullptr) batch.results->append(batch.error_line(error, {file, key}));
      if (batch.events.on_error) batch.events.on_error(index, file, error);
    }
  }
  return outcome;
}

}  // namespace headrace
