// headrace batch: a file of requests in OpenAI's form, answered by one device or several; headrace batch merge.
#include "runtime/commands/batch.h"

#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/answer_options.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/devices.h"
#include "cli/print/engines_progress.h"
#include "cli/print/format.h"
#include "cli/print/interrupt.h"
#include "cli/print/report.h"
#include "cli/print/time_left.h"
#include "runtime/commands/batch_merge.h"
#include "runtime/requests/prompt.h"
#include "runtime/requests/response.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

class RequestBatch {
 public:
  explicit RequestBatch(const BatchArgs& args)
      : args_(args),
        console_(args.output, /*streams_text=*/false),
        file_(args.requests, interrupt_.flag()),
        lines_(own_lines()),
        prompts_(shared_prompts(lines_, args_.generate.max_tokens)),
        results_(shard_path(args.results, args.shard), retried(), request_lines()),
        engines_(open_engines(args.engine, args.devices, &console_)),
        parsed_(engines_.size()),
        progress_(&console_.progress(), &mutex_, engines_.size()) {}

  ExitCode run() {
    BatchOptions batch;
    batch.options = answer_options(args_.engine, args_.generate, engines_.front(), {"requests"});
    check_answered(batch.options);
    for (const RequestFile::Line& line : lines_) batch.files.push_back(file_.name(line));
    batch.results = &results_;
    batch.engines = engines_.size();
    batch.shared = shared_bytes(prompts_);
    batch.mutex = &mutex_;
    batch.read = [this](const BatchJob& job) {
      const MutexLock lock(mutex_);
      return file_.read(lines_[job.index]);
    };
    batch.answer = [this](const BatchJob& job, const std::string& text) { return answer(job, text); };
    batch.result_line = [this](const BatchJob& job, const GenerateResult& result, const std::string& key) {
      return batch_result_line(key, parsed_[job.engine], result, std::time(nullptr));
    };
    batch.error_line = [this](const BatchJob& job, const Error& error, const std::string& key) {
      return batch_error_line(key, lines_[job.index].custom_id, error);
    };
    std::vector<uint64_t> bytes;
    for (const RequestFile::Line& line : lines_) bytes.push_back(line.bytes);
    TimeLeft time_left(std::move(bytes));
    show_events(&batch.events, &time_left);
    const BatchOutcome outcome = run_batch(batch);
    console_.progress().print_line(format_batch(outcome, "answered", args_.devices));
    if (const auto trace = engines_.front().write_trace()) console_.report_trace(*trace);
    console_.finish();
    return outcome.exit_code();
  }

 private:
  void show_events(BatchEvents* events, TimeLeft* time_left) {
    events->on_begin = [this](const BatchJob& job) { progress_.set_label(job.engine, label(job)); };
    events->on_result = [this, time_left](const BatchJob& job, const GenerateResult& result) {
      console_.note_result(result);
      console_.progress().print_line(label(job) + ": " + format_summary_line(result) + time_left->answered(job.index));
    };
    events->on_error = [this, time_left](const BatchJob& job, const Error& error) {
      time_left->passed(job.index);
      console_.error(error.what());
    };
    events->on_skipped = [this, time_left](const BatchJob& job) {
      time_left->passed(job.index);
      console_.progress().print_line(label(job) + ": done before");
    };
    events->on_lost = [this](const BatchJob& job, const std::string& why) {
      console_.warn(format_lost(args_.devices[job.engine], why, job.file));
    };
  }

  // "[2/5] request-7"
  std::string label(const BatchJob& job) const {
    return str("[", job.index + 1, "/", lines_.size(), "] ", visible(job.file));
  }

  std::vector<RequestFile::Line> own_lines() {
    std::error_code error;
    if (std::filesystem::equivalent(args_.requests, args_.results, error)) {
      throw_error(ExitCode::kUsage, args_.results, "is the request file: give -o another file");
    }
    std::vector<RequestFile::Line> lines = file_.lines();
    std::erase_if(lines, [this](const RequestFile::Line& line) { return !file_.owns(line, args_.shard); });
    if (!args_.in_order) order_by_beginnings(&lines);
    return lines;
  }

  // Error lines without a custom_id have the empty name.
  std::vector<std::string> retried() const {
    std::vector<std::string> names = {""};
    for (const RequestFile::Line& line : lines_) names.push_back(line.custom_id);
    return names;
  }

  // An answer of another request, model or option under the same custom_id would be a second one.
  void check_answered(const std::string& options) {
    for (const RequestFile::Line& line : lines_) {
      const std::string* const key = line.custom_id.empty() ? nullptr : results_.key_of(line.custom_id);
      if (key == nullptr || *key == job_key(options, file_.read(line))) continue;
      throw_error(ExitCode::kUsage, shard_path(args_.results, args_.shard),
                  str("answers '", line.custom_id, "' as another request, or by another model or other options"),
                  "Give -o another file");
    }
  }

  GenerateResult answer(const BatchJob& job, const std::string& text) {
    const std::string source = file_.source(lines_[job.index]);
    Engine& engine = engines_[job.engine];
    BatchLine& parsed = parsed_[job.engine];
    parsed = parse_batch_line(text, source, nullptr, {.interrupt = interrupt_.flag()});
    Request& request = parsed.request;
    GenerateOptions options = args_.generate;
    request.apply(&options);
    options.interrupt = interrupt_.flag();
    options.label = parsed.custom_id;
    options.earlier_answers = true;
    const PromptForm form = args_.engine.use_chat_template ? PromptForm::kByTemplate : PromptForm::kPlain;
    const std::vector<int32_t> ids = take_prompt(engine, form, source, &request);
    const bool shares = may_share_rows(args_.engine);
    const int64_t keep_tokens = shares ? tokens_to_share(prompts_, job.index, static_cast<int64_t>(ids.size())) : 0;
    return generate_sharing(engine, ids, options, keep_tokens, &progress_.of(job.engine));
  }

  const BatchArgs& args_;
  Interrupt interrupt_;
  Mutex mutex_;  // of what the engines share: the console, the file of requests
  Console console_;
  RequestFile file_;
  std::vector<RequestFile::Line> lines_;
  std::vector<SharedPrompt> prompts_;
  ResultsFile results_;
  std::deque<Engine> engines_;
  std::vector<BatchLine> parsed_;  // an engine's current line
  EnginesProgress progress_;
};

}  // namespace

ExitCode run_command(const BatchArgs& args) { return RequestBatch(args).run(); }

ExitCode run_command(const BatchMergeArgs& args) {
  const MergeOutcome outcome = merge_batch(args.requests, args.results);
  Console console({}, /*streams_text=*/false);
  console.print(str(args.results, ": ", outcome.requests, " requests from ", outcome.shards, " shards, ",
                    outcome.failed, " failed\n"));
  console.finish();
  return ExitCode::kDone;
}

ExitCode run_command(const BatchMakeArgs& args) {
  std::vector<std::string> skipped;
  const std::vector<std::string> files = expand_documents(args.paths, {args.requests}, &skipped);
  Console console({}, /*streams_text=*/false);
  if (!skipped.empty()) console.progress().print_line(skipped_note(skipped));
  std::ofstream out;
  if (!args.requests.empty()) out.open(args.requests, std::ios::trunc);
  for (const std::string& file : files) {
    const std::string line =
        make_request_line({.custom_id = file,
                           .model = args.model,
                           .system = args.system,
                           .user = document_text(file) + (args.instruction.empty() ? "" : "\n\n" + args.instruction),
                           .max_tokens = args.max_tokens}) +
        "\n";
    if (args.requests.empty()) console.print(line);
    out << line;
  }
  if (!args.requests.empty()) {
    if (!out.flush()) throw_error(ExitCode::kStorage, args.requests, "cannot be written");
    console.progress().print_line(str(args.requests, ": ", files.size(), " requests"));
  }
  console.finish();
  return ExitCode::kDone;
}

}  // namespace headrace
