// headrace batch: a file of requests in OpenAI's form, answered one after the other; headrace batch merge.
#include "runtime/commands/batch.h"

#include <chrono>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/answer_options.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/print/format.h"
#include "cli/print/interrupt.h"
#include "cli/print/report.h"
#include "runtime/commands/batch_merge.h"
#include "runtime/requests/response.h"

namespace headrace {
namespace {

class RequestBatch {
 public:
  explicit RequestBatch(const BatchArgs& args)
      : args_(args),
        console_(args.output, /*streams_text=*/false),
        file_(args.requests),
        lines_(own_lines()),
        results_(shard_path(args.results, args.shard), retried(), request_lines()),
        engine_(console_.with_rates(args.engine)) {}

  ExitCode run() {
    console_.note_engine(engine_);
    BatchOptions batch;
    batch.options = answer_options(args_.engine, args_.generate, engine_, {"requests"});
    check_answered(batch.options);
    for (const RequestFile::Line& line : lines_) batch.files.push_back(file_.name(line));
    batch.results = &results_;
    size_t next = 0;  // run_batch() takes them in order
    batch.read = [this, &next](const std::string&) {
      current_ = &lines_[next++];
      return file_.read(*current_);
    };
    batch.answer = [this](const std::string&, const std::string& text) { return answer(text); };
    batch.result_line = [this](const GenerateResult& result, const LineLabel& label) {
      return batch_result_line(std::string(label.key), parsed_, result, std::time(nullptr));
    };
    batch.error_line = [this](const Error& error, const LineLabel& label) {
      return batch_error_line(std::string(label.key), current_->custom_id, error);
    };
    batch.events.on_begin = [this](size_t index, const std::string& name) {
      label_ = str("[", index + 1, "/", lines_.size(), "] ", visible(name));
      console_.progress().set_label(label_);
    };
    batch.events.on_result = [this](size_t index, const std::string&, const GenerateResult& result) {
      console_.note_result(result);
      console_.progress().print_line(label_ + ": " + format_summary_line(result) + time_left(index));
    };
    batch.events.on_error = [this](size_t, const std::string&, const Error& error) { console_.error(error.what()); };
    batch.events.on_skipped = [this](size_t index, const std::string&) {
      console_.progress().print_line(label_ + ": done before");
      skipped_bytes_ += lines_[index].bytes;
    };
    for (const RequestFile::Line& line : lines_) left_bytes_ += line.bytes;
    started_ = std::chrono::steady_clock::now();
    const BatchOutcome outcome = run_batch(batch);
    console_.progress().print_line(str(outcome.answered, " answered, ", outcome.skipped, " done before, ",
                                       outcome.failed, " failed",
                                       outcome.interrupted ? "; interrupted, the same command continues" : ""));
    if (const auto trace = engine_.write_trace()) console_.report_trace(*trace);
    console_.finish();
    return outcome.exit_code();
  }

 private:
  std::vector<RequestFile::Line> own_lines() {
    std::error_code error;
    if (std::filesystem::equivalent(args_.requests, args_.results, error)) {
      throw_error(ExitCode::kUsage, args_.results, "is the file of requests: -o needs another");
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

  GenerateResult answer(const std::string& text) {
    parsed_ = parse_batch_line(text, file_.source(*current_));
    const Request& request = parsed_.request;
    check_document_size(file_.source(*current_), request.text().size(), engine_.document_limit());
    GenerateOptions options = args_.generate;
    request.apply(&options);
    options.interrupt = interrupt_.flag();
    options.label = parsed_.custom_id;
    const std::vector<int32_t> ids = request.kind == RequestKind::kChat && args_.engine.use_chat_template
                                         ? engine_.encode(request.messages)
                                         : engine_.encode_plain(request.text());
    return engine_.generate(ids, options, &console_.progress());
  }

  // "; 3:20 left": by bytes, from the time of the requests so far, without those done before.
  std::string time_left(size_t index) {
    answered_bytes_ += lines_[index].bytes;
    const uint64_t left = left_bytes_ - answered_bytes_ - skipped_bytes_;
    if (left == 0) return "";
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
    return "; " + format_time_left(seconds * static_cast<double>(left) / static_cast<double>(answered_bytes_)) +
           " left";
  }

  const BatchArgs& args_;
  Interrupt interrupt_;
  Console console_;
  RequestFile file_;
  std::vector<RequestFile::Line> lines_;
  ResultsFile results_;
  Engine engine_;
  const RequestFile::Line* current_ = nullptr;
  BatchLine parsed_;
  std::string label_;  // "[2/5] request-7"
  std::chrono::steady_clock::time_point started_;
  uint64_t left_bytes_ = 0, answered_bytes_ = 0, skipped_bytes_ = 0;
};

}  // namespace

ExitCode run_batch_requests(const BatchArgs& args) { return RequestBatch(args).run(); }

ExitCode run_batch_merge(const BatchMergeArgs& args) {
  const MergeOutcome outcome = merge_batch(args.requests, args.results);
  Console console({}, /*streams_text=*/false);
  console.print(str(args.results, ": ", outcome.requests, " requests from ", outcome.shards, " shards, ",
                    outcome.failed, " failed\n"));
  console.finish();
  return ExitCode::kDone;
}

}  // namespace headrace
