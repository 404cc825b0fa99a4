// headrace summarize: documents as text, as JSON lines, or as a batch that a rerun continues.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/answer_options.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/devices.h"
#include "cli/flags/help.h"
#include "cli/print/engines_progress.h"
#include "cli/print/format.h"
#include "cli/print/interrupt.h"
#include "cli/print/report.h"
#include "cli/print/summary_text.h"
#include "cli/print/time_left.h"
#include "runtime/commands/batch.h"
#include "runtime/commands/long_document.h"
#include "runtime/commands/report.h"
#include "runtime/commands/request_file.h"
#include "runtime/commands/shared_rows.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

class Summarizer {
 public:
  explicit Summarizer(const SummarizeArgs& args)
      : args_(args),
        all_files_(expand_documents(
            args.paths, {results_path(), args.out_dir, args.engine.device.trace_path, args.engine.prefix_cache.folder},
            &skipped_)),
        files_(own_files()),
        console_(args.output, /*streams_text=*/args.results.empty() && prints_text()),
        results_(args.results.empty() ? nullptr : std::make_unique<ResultsFile>(results_path(), files_)),
        engines_(open_engines(args.engine, args.devices, &console_)),
        progress_(&console_.progress(), &mutex_, engines_.size()) {
    if (!skipped_.empty() && !args.output.quiet) console_.progress().print_line(skipped_note(skipped_));
    make_out_dir();
    if (many() && !args.split) prompts_ = shared_prompts(files_, args.generate.max_tokens);
  }

  ExitCode run() {
    if (files_.empty()) {
      console_.progress().print_line("this shard has no documents");
      return ExitCode::kDone;
    }
    BatchOptions batch;
    batch.files = files_;
    batch.options =
        answer_options(args_.engine, args_.generate, engines_.front(),
                       {args_.system, args_.instruction, str(args_.split ? 2 : static_cast<int>(args_.truncate))});
    batch.results = results_.get();
    batch.engines = engines_.size();
    batch.shared = shared_bytes(prompts_);
    batch.mutex = &mutex_;
    const ReadOptions reading{.limit = refuses() ? engines_.front().document_limit() : DocumentLimit(),
                              .interrupt = interrupt_.flag()};
    batch.read = [&reading](const BatchJob& job) { return document_text(job.file, reading); };
    batch.answer = [this](const BatchJob& job, const std::string& text) { return answer(job, text); };
    TimeLeft time_left(bytes_of(files_));
    batch.events.on_begin = [this](const BatchJob& job) { begin(job); };
    batch.events.on_result = [&](const BatchJob& job, const GenerateResult& result) {
      show(job, result, time_left.answered(job.index));
    };
    batch.events.on_error = [&](const BatchJob& job, const Error& error) {
      time_left.passed(job.index);
      fail(job.file, error);
    };
    batch.events.on_skipped = [&](const BatchJob& job) {
      time_left.passed(job.index);
      console_.progress().print_line(label(job) + ": done before");
    };
    batch.events.on_lost = [this](const BatchJob& job, const std::string& why) {
      console_.warn(format_lost(args_.devices[job.engine], why, job.file));
    };
    const BatchOutcome outcome = run_batch(batch);
    if (many() && !args_.output.quiet) {
      console_.progress().clear();
      std::fputs(format_summaries(rows_, static_cast<size_t>(terminal_columns())).c_str(), stderr);
    }
    if (last_) console_.report_faster(engines_.front(), args_.engine, *last_, args_.generate.max_tokens);
    if (many()) console_.progress().print_line(format_batch(outcome, "summarized", args_.devices));
    if (const auto trace = engines_.front().write_trace()) console_.report_trace(*trace);
    console_.finish();
    return outcome.exit_code();
  }

 private:
  bool many() const { return files_.size() > 1; }
  bool prints_text() const { return args_.format == SummaryFormat::kText && args_.out_dir.empty(); }
  std::string results_path() const { return shard_path(args_.results, args_.shard); }

  // By their names, whatever else there is: a machine with the same folder has the other documents.
  std::vector<std::string> own_files() const {
    std::vector<std::string> own = all_files_;
    const auto shards = static_cast<uint64_t>(args_.shard.count);
    std::erase_if(own, [&](const std::string& file) {
      if (shards == 0) return false;
      const uint64_t hash = std::stoull(job_key("shard", file).substr(0, 15), nullptr, 16);
      return hash % shards != static_cast<uint64_t>(args_.shard.index);
    });
    return own;
  }

  // The names are those of all documents, so that no two shards write one file.
  void make_out_dir() {
    if (args_.out_dir.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(args_.out_dir, error);
    if (error) throw_error(ExitCode::kStorage, args_.out_dir, "cannot be created: " + error.message());
    const std::vector<std::string> names = summary_files(all_files_, args_.format);
    for (size_t i = 0; i < names.size(); ++i) out_files_[all_files_[i]] = args_.out_dir + "/" + names[i];
  }
  bool refuses() const { return args_.truncate == Truncate::kNone && !args_.split; }  // a document that is too long

  // "[2/5] docs/a.txt"
  std::string label(const BatchJob& job) const { return numbered(job, visible_name(job.file)); }
  std::string numbered(const BatchJob& job, const std::string& name) const {
    return many() ? str("[", job.index + 1, "/", files_.size(), "] ", name) : name;
  }

  void begin(const BatchJob& job) {
    const std::string name = std::filesystem::path(job.file).filename().string();
    progress_.set_label(job.engine, many() ? numbered(job, name) : "");
    const bool text = results_ == nullptr && !args_.output.json && prints_text();
    if (text && many()) console_.print((job.index > 0 ? "\n==> " : "==> ") + visible_name(job.file) + " <==\n");
  }

  GenerateResult answer(const BatchJob& job, const std::string& text) {
    const Engine& engine = engines_[job.engine];
    const PromptRules rules{.instruction = args_.instruction.empty() ? "" : "\n\n" + args_.instruction,
                            .truncate = args_.truncate,
                            .context_tokens = engine.context_limit(),
                            .answer_tokens = answer_room()};
    const EncodePrompt encode = [this, &engine](std::string_view user) {
      return args_.engine.use_chat_template ? engine.encode({args_.system, std::string(user)})
                                            : engine.encode_plain(user);
    };
    if (args_.split) {
      return answer_long(job.file, text, rules, encode, [&](const std::vector<int32_t>& ids, const PartLabel& part) {
        if (!part.last) print_part(job, part, ids.size());
        return generate(job, ids, part.last);
      });
    }
    const DocumentPrompt prompt = document_prompt(job.file, text, rules, encode);
    GenerateResult result = generate(job, prompt.ids, /*streams=*/true);
    result.left_out = {.whole_tokens = prompt.whole_tokens, .tokens = prompt.left_out_tokens()};
    return result;
  }

  GenerateResult generate(const BatchJob& job, const std::vector<int32_t>& ids, bool streams) {
    GenerateOptions options = args_.generate;
    // An answer that takes all the room there is would be as long as the part.
    if (!streams && options.max_tokens < 0) options.max_tokens = answer_room();
    options.interrupt = interrupt_.flag();
    if (streams) options.on_text = console_.text_sink(engines_[job.engine], ids);
    options.label = job.file;
    options.earlier_answers = true;
    const bool shares = !prompts_.empty() && may_share_rows(args_.engine);
    const int64_t keep_tokens = shares ? tokens_to_share(prompts_, job.index, static_cast<int64_t>(ids.size())) : 0;
    return generate_sharing(engines_[job.engine], ids, options, keep_tokens, &progress_.of(job.engine));
  }

  // "report.txt: part 2 of 5, 7,900 tokens"; of the summaries: "report.txt: summaries 1, part 1 of 2, ...".
  void print_part(const BatchJob& job, const PartLabel& part, size_t tokens) {
    const MutexLock lock(mutex_);
    console_.progress().print_line(str(label(job), ": ", part.level > 1 ? str("summaries ", part.level - 1, ", ") : "",
                                       "part ", part.part, " of ", part.parts, ", ",
                                       format_count(static_cast<int64_t>(tokens)), " tokens"));
  }

  // The room that a document must leave: the whole answer, but at most a quarter of the context. The default of -n is
  // more than most answers take, so a part of it is enough. With -n -1 the answer takes the rest of the context: a
  // quarter if documents are cut, else at least one token.
  int64_t answer_room() const {
    const int64_t quarter = engines_.front().context_limit() / 4, most = args_.generate.max_tokens;
    if (most < 0) return refuses() ? 1 : quarter;
    return std::min(most == kSummaryTokens && refuses() ? kLeastSummary : most, quarter);
  }

  void show(const BatchJob& job, const GenerateResult& result, const std::string& time_left) {
    if (args_.output.json) console_.print(result_json(result, {job.file, ""}) + "\n");
    if (!prints_text() && !args_.output.json) write(job.file, result);
    console_.end_text();
    console_.note_result(result);
    rows_.push_back(summary_row(job.file, result));
    last_ = result;
    if (results_ == nullptr) console_.note_cut(result, args_.generate, many() ? job.file : "");
    if (results_ != nullptr || !prints_text()) {
      console_.progress().print_line(label(job) + ": " + format_summary_line(result) + time_left);
    } else {
      console_.report(result, engines_[job.engine].describe(), args_.generate.max_tokens);
    }
  }

  void write(const std::string& file, const GenerateResult& result) {
    const std::string text = format_summary(args_.format, file, result);
    if (args_.out_dir.empty()) {
      console_.print((rows_.empty() ? summary_heading(args_.format) : "") + text);
      return;
    }
    const std::string& path = out_files_.at(file);
    std::ofstream out(path, std::ios::trunc);
    out << summary_heading(args_.format) << text << std::flush;
    if (!out) throw_error(ExitCode::kStorage, path, "cannot be written");
  }

  static std::vector<uint64_t> bytes_of(const std::vector<std::string>& files) {
    std::vector<uint64_t> all;
    for (const std::string& file : files) {
      std::error_code error;
      const uint64_t bytes = std::filesystem::file_size(file, error);
      all.push_back(error ? 0 : bytes);
    }
    return all;
  }

  void fail(const std::string& file, const Error& error) {
    if (args_.output.json) console_.print(error_json(error, {file, ""}) + "\n");
    console_.end_text();
    rows_.push_back({.file = file, .tokens = 0, .seconds = 0, .first_line = str("error: ", first_line(error))});
    const bool named = error.info().where.find(file) != std::string::npos;
    console_.error(named || file == "-" ? error.what() : file + ": " + error.what());
  }

  const SummarizeArgs& args_;
  std::vector<std::string> skipped_, all_files_, files_;  // files_: of the shard
  std::map<std::string, std::string> out_files_;          // with --out-dir, by document
  std::vector<SummaryRow> rows_;
  std::optional<GenerateResult> last_;
  std::vector<SharedPrompt> prompts_;  // empty: none shares rows
  Interrupt interrupt_;
  Mutex mutex_;  // of what the engines share: the console
  Console console_;
  std::unique_ptr<ResultsFile> results_;
  std::deque<Engine> engines_;
  EnginesProgress progress_;
};

}  // namespace

ExitCode run_command(const SummarizeArgs& args) { return Summarizer(args).run(); }

}  // namespace headrace
