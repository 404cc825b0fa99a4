#include "runtime/commands/batch.h"

#include <exception>
#include <filesystem>
#include <iterator>
#include <new>
#include <optional>
#include <set>
#include <thread>

#include "offload/host/start_thread.h"
#include "runtime/base/sha256.h"
#include "runtime/commands/request_queue.h"
#include "runtime/model/files/open_checkpoint.h"

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

bool of_the_document(const Error& error) {
  return error.code() == ExitCode::kBadInput || error.code() == ExitCode::kDoesNotFit;
}

struct EngineLost {
  std::exception_ptr error;
  std::string why;  // on one line
};

class Batch {
 public:
  explicit Batch(const BatchOptions& options)
      : options_(options),
        mutex_(options.mutex != nullptr ? *options.mutex : own_mutex_),
        queue_(options.shared.empty() ? std::vector<size_t>(options.files.size()) : options.shared, options.engines) {
    CHECK(options.shared.empty() || options.shared.size() == options.files.size());
    outcome_.engines.resize(options.engines);
  }

  BatchOutcome run() {
    if (options_.results != nullptr) options_.results->begin();
    std::vector<std::thread> threads;
    try {
      for (size_t engine = 1; engine < options_.engines; ++engine) {
        threads.push_back(start_thread("the thread of a device", [this, engine] { work(engine); }));
      }
    } catch (...) {
      const MutexLock lock(mutex_);
      end(std::current_exception());
    }
    work(0);
    for (std::thread& thread : threads) thread.join();
    const MutexLock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    return outcome_;
  }

 private:
  void work(size_t engine) {
    const MutexLock lock(mutex_);
    try {
      while (const std::optional<size_t> index = next(engine)) run_job({*index, engine, options_.files[*index]});
    } catch (...) {
      end(std::current_exception());
    }
  }

  // Waits while other engines may still be lost with their documents. None: the batch is done or ended, or the engine
  // is lost.
  std::optional<size_t> next(size_t engine) REQUIRES(mutex_) {
    while (!ended_ && !outcome_.engines[engine].lost) {
      if (const std::optional<size_t> index = queue_.take(engine)) return index;
      if (queue_.done()) break;
      changed_.wait(mutex_);
    }
    return std::nullopt;
  }

  void end(const std::exception_ptr& failure) REQUIRES(mutex_) {
    ended_ = true;
    if (!failure_) failure_ = failure;
    changed_.notify_all();
  }

  void run_job(const BatchJob& job) REQUIRES(mutex_) {
    if (options_.events.on_begin) options_.events.on_begin(job);
    std::string key;
    try {
      try_document(job, &key);
      queue_.finish(job.engine);
    } catch (const Error& error) {
      if (error.code() == ExitCode::kInterrupted) {
        interrupt();
      } else if (of_the_document(error)) {
        fail(job, error, key);
      } else {
        throw;
      }
      queue_.finish(job.engine);
    } catch (const EngineLost& lost) {
      lose(job, lost, key);
    }
    changed_.notify_all();
  }

  // Running out of memory fails the document, as exceeding a budget does: a shorter document may fit.
  void try_document(const BatchJob& job, std::string* key) REQUIRES(mutex_) {
    try {
      run_document(job, key);
    } catch (const std::bad_alloc&) {
      throw_error(ExitCode::kDoesNotFit, job.file, "out of memory outside the budgets",
                  "Lower --host-mem, or give the program more memory.");
    }
  }

  void run_document(const BatchJob& job, std::string* key) REQUIRES(mutex_) {
    const std::string text = read(job);
    *key = job_key(options_.options, text);
    if (options_.results != nullptr && options_.results->take(*key)) {
      ++outcome_.skipped;
      if (options_.events.on_skipped) options_.events.on_skipped(job);
      return;
    }
    const GenerateResult result = answer(job, text);
    const bool interrupted = result.finish_reason == FinishReason::kInterrupted;
    if (interrupted) {
      interrupt();
    } else {
      if (options_.results != nullptr) options_.results->append(result_line(job, result, *key));
      ++outcome_.answered, ++outcome_.engines[job.engine].answered;
    }
    if (options_.events.on_result) options_.events.on_result(job, result);
  }

  std::string read(const BatchJob& job) REQUIRES(mutex_) {
    const MutexUnlock unlocked(mutex_);
    return options_.read(job);
  }

  GenerateResult answer(const BatchJob& job, const std::string& text) REQUIRES(mutex_) {
    const MutexUnlock unlocked(mutex_);
    try {
      return options_.answer(job, text);
    } catch (const Error& error) {
      if (of_the_document(error) || error.code() == ExitCode::kInterrupted) throw;
      throw EngineLost{std::current_exception(), first_line(error)};
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw EngineLost{std::current_exception(), first_line(error)};
    }
  }

  void lose(const BatchJob& job, const EngineLost& lost, const std::string& key) REQUIRES(mutex_) {
    outcome_.engines[job.engine].lost = true;
    const bool put_back = queue_.lose(job.engine);
    if (queue_.engines_left() == 0) std::rethrow_exception(lost.error);
    if (options_.events.on_lost) options_.events.on_lost(job, lost.why);
    if (!put_back) {
      fail(job,
           Error({.code = ExitCode::kInternal,
                  .where = job.file,
                  .what = "two devices failed on it, the second with " + lost.why,
                  .hint = ""}),
           key);
    }
  }

  void interrupt() REQUIRES(mutex_) { outcome_.interrupted = ended_ = true; }

  void fail(const BatchJob& job, const Error& error, std::string key) REQUIRES(mutex_) {
    const bool alike = outcome_.failed == 0 || outcome_.failure == error.code();
    outcome_.failure = alike ? error.code() : ExitCode::kBadInput;
    ++outcome_.failed;
    if (key.empty()) key = job_key(options_.options, "unread file " + job.file);
    if (options_.results != nullptr) options_.results->append(error_line(job, error, key));
    if (options_.events.on_error) options_.events.on_error(job, error);
  }

  std::string result_line(const BatchJob& job, const GenerateResult& result, const std::string& key) const {
    return options_.result_line ? options_.result_line(job, result, key) : result_json(result, {job.file, key});
  }
  std::string error_line(const BatchJob& job, const Error& error, const std::string& key) const {
    return options_.error_line ? options_.error_line(job, error, key) : error_json(error, {job.file, key});
  }

  const BatchOptions& options_;
  Mutex own_mutex_;
  Mutex& mutex_;
  CondVar changed_;
  RequestQueue queue_ GUARDED_BY(mutex_);
  BatchOutcome outcome_ GUARDED_BY(mutex_);
  std::exception_ptr failure_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;  // no engine takes another document
};

}  // namespace

BatchOutcome run_batch(const BatchOptions& options) { return Batch(options).run(); }

}  // namespace headrace
