// headrace summarize: documents one after the other, as text, as JSON lines, or as a batch that a rerun continues.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/print/format.h"
#include "cli/print/interrupt.h"
#include "cli/print/report.h"
#include "runtime/commands/batch.h"
#include "runtime/commands/report.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

std::string exact_text(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

std::string tree_text(const TreeShape& tree) {
  std::string text = str(tree.nodes, " ", exact_text(static_cast<double>(tree.threshold)));
  for (const TreeLevel& level : tree.levels) {
    for (const int64_t size : {level.rows, level.branch, level.width, level.keep, level.first_candidate}) {
      text += str(" ", size);
    }
  }
  return text;
}

// Everything that may change a summary, and nothing else: memory placement and the number of threads change no bit.
std::string options_text(const SummarizeArgs& args, const Engine& engine) {
  const auto type_name = [](const std::optional<DType>& type) { return type ? dtype_name(*type) : "auto"; };
  const SamplingSettings& s = args.generate.sampling;
  std::string text;
  const auto add = [&](const auto& value) {
    const std::string piece = str(value);
    text += str(piece.size(), ":", piece, ",");
  };
  add(files_stamp(engine.model_files()));
  add(dtype_name(engine.dtype()));
  // Weights that loading quantised have other values. CUDA multiplies quantised weights by a kernel of their own.
  const bool cuda = engine.device().backend() == Backend::kCuda;
  for (const WeightTypeUse& use : engine.weight_types()) {
    if (use.quantised_by_load() || (cuda && use.quantised())) add(str(use.stored, " ", use.loaded));
  }
  add(type_name(args.engine.cache_type_k));
  add(type_name(args.engine.cache_type_v));
  add(engine.context_limit());
  add(args.engine.use_chat_template);
  add(args.engine.chat_template);
  add(args.engine.thinking);
  add(args.engine.chat_template_file.empty() ? "" : read_document(args.engine.chat_template_file));
  const RopeConfig& rope = engine.config().rope;
  for (double number :
       {rope.theta, rope.factor, static_cast<double>(rope.scaling), static_cast<double>(rope.original_max_positions)}) {
    add(exact_text(number));
  }
  add(args.system);
  add(args.instruction);
  add(static_cast<int>(args.truncate));
  add(args.generate.max_tokens);
  add(args.generate.ignore_eos);
  for (float number : {s.temperature, s.top_p, s.min_p}) {
    add(exact_text(static_cast<double>(number)));
  }
  add(s.top_k);
  add(s.seed);
  const VerifyOptions& verify = args.engine.verify;
  if (verify.mode == VerifyMode::kApproximate) {  // the other modes give the text of plain decoding
    add(verify_mode_name(*verify.mode));
    add(verify.budget.value_or(kUsualBudget));
    add(verify.interval);
    add(static_cast<int>(verify.score));
    add(static_cast<int>(verify.reduce));
    if (copy_type(verify.partial)) add(partial_kind_name(verify.partial));
    const DraftOptions& draft = args.engine.draft;
    add(spec_type_name(draft.type));
    add(draft.window);
    add(draft.most_tokens);
    add(exact_text(draft.rope_theta));
    add(static_cast<int>(engine.device().backend()));  // selects the tree of --tree auto
    add(draft.tree ? tree_text(*draft.tree) : "auto");
    add(files_stamp(engine.draft_files()));
    add(static_cast<int>(args.engine.weights));  // a small draft's
  }
  return text;
}

class Summarizer {
 public:
  explicit Summarizer(const SummarizeArgs& args)
      : args_(args),
        files_(expand_documents(args.paths,
                                {args.results, args.engine.device.trace_path, args.engine.prefix_cache.folder})),
        console_(args.output, /*streams_text=*/args.results.empty()),
        results_(args.results.empty() ? nullptr : std::make_unique<ResultsFile>(args.results, files_)),
        engine_(console_.with_rates(args.engine)) {}

  ExitCode run() {
    console_.note_engine(engine_);
    BatchOptions batch;
    batch.files = files_;
    batch.options = options_text(args_, engine_);
    batch.results = results_.get();
    const ReadOptions reading{.limit = args_.truncate == Truncate::kNone ? engine_.document_limit() : DocumentLimit(),
                              .interrupt = interrupt_.flag()};
    batch.read = [&reading](const std::string& file) { return read_document(file, reading); };
    batch.answer = [this](const std::string& file, const std::string& text) { return answer(file, text); };
    batch.events.on_begin = [this](size_t index, const std::string& file) { begin(index, file); };
    batch.events.on_result = [this](size_t index, const std::string& file, const GenerateResult& r) {
      show(index, file, r);
    };
    batch.events.on_error = [this](size_t, const std::string& file, const Error& e) { fail(file, e); };
    batch.events.on_skipped = [this](size_t, const std::string&) {
      console_.progress().print_line(label_ + ": done before");
    };
    started_ = std::chrono::steady_clock::now();
    const BatchOutcome outcome = run_batch(batch);
    if (files_.size() > 1) sum_up(outcome);
    if (const auto trace = engine_.write_trace()) console_.report_trace(*trace);
    console_.finish();
    return outcome.exit_code();
  }

 private:
  bool many() const { return files_.size() > 1; }

  void begin(size_t index, const std::string& file) {
    const std::string shown = visible_name(file);
    label_ = many() ? str("[", index + 1, "/", files_.size(), "] ", shown) : shown;
    const std::string name = std::filesystem::path(file).filename().string();
    console_.progress().set_label(many() ? str("[", index + 1, "/", files_.size(), "] ", name) : "");
    const bool text = results_ == nullptr && !args_.output.json;
    if (text && many()) console_.print((index > 0 ? "\n==> " : "==> ") + shown + " <==\n");
  }

  GenerateResult answer(const std::string& file, const std::string& text) {
    const PromptRules rules{.instruction = args_.instruction.empty() ? "" : "\n\n" + args_.instruction,
                            .truncate = args_.truncate,
                            .context_tokens = engine_.context_limit(),
                            .answer_tokens = answer_room()};
    const DocumentPrompt prompt = document_prompt(file, text, rules, [this](std::string_view user) {
      return args_.engine.use_chat_template ? engine_.encode({args_.system, std::string(user)})
                                            : engine_.encode_plain(user);
    });
    GenerateOptions options = args_.generate;
    options.interrupt = interrupt_.flag();
    options.on_text = console_.text_sink();
    options.label = file;
    GenerateResult result = engine_.generate(prompt.ids, options, &console_.progress());
    result.left_out = {.whole_tokens = prompt.whole_tokens, .tokens = prompt.left_out_tokens()};
    return result;
  }

  // The room that a document must leave: the whole answer, but at most a quarter of the context. With -n -1 the answer
  // takes the rest of the context: a quarter if documents are truncated, else at least one token.
  int64_t answer_room() const {
    const int64_t quarter = engine_.context_limit() / 4, most = args_.generate.max_tokens;
    if (most < 0) return args_.truncate == Truncate::kMiddle ? quarter : 1;
    return std::min(most, quarter);
  }

  void show(size_t index, const std::string& file, const GenerateResult& result) {
    if (args_.output.json) console_.print(result_json(result, {file, ""}) + "\n");
    console_.end_text();
    console_.note_result(result);
    if (results_ != nullptr) {
      console_.progress().print_line(label_ + ": " + format_summary_line(result) + time_left(index));
    } else {
      console_.report(result, engine_.describe(), args_.generate.max_tokens);
    }
  }

  // Bytes of the documents from each one on, for the time left; computed once.
  static std::vector<uint64_t> bytes_from(const std::vector<std::string>& files) {
    std::vector<uint64_t> from(files.size() + 1, 0);
    for (size_t i = files.size(); i-- > 0;) {
      std::error_code error;
      const uint64_t bytes = std::filesystem::file_size(files[i], error);
      from[i] = from[i + 1] + (error ? 0 : bytes);
    }
    return from;
  }

  // "; 3:20 left": by bytes, from the time of the documents so far, without those done before.
  std::string time_left(size_t index) {
    answered_bytes_ += bytes_from_[index] - bytes_from_[index + 1];
    const uint64_t left = bytes_from_[index + 1];
    if (left == 0 || answered_bytes_ == 0) return "";
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
    return "; " + format_time_left(seconds * static_cast<double>(left) / static_cast<double>(answered_bytes_)) +
           " left";
  }

  void fail(const std::string& file, const Error& error) {
    if (args_.output.json) console_.print(error_json(error, {file, ""}) + "\n");
    console_.end_text();
    const bool named = error.info().where.find(file) != std::string::npos;
    console_.error(named || file == "-" ? error.what() : file + ": " + error.what());
  }

  void sum_up(const BatchOutcome& outcome) {
    console_.progress().print_line(str(outcome.answered, " summarized, ", outcome.skipped, " done before, ",
                                       outcome.failed, " failed",
                                       outcome.interrupted ? "; interrupted, the same command continues" : ""));
  }

  const SummarizeArgs& args_;
  std::vector<std::string> files_;
  Interrupt interrupt_;
  Console console_;
  std::unique_ptr<ResultsFile> results_;
  Engine engine_;
  std::string label_;  // "[2/5] docs/a.txt"
  std::chrono::steady_clock::time_point started_;
  std::vector<uint64_t> bytes_from_ = bytes_from(files_);
  uint64_t answered_bytes_ = 0;
};

}  // namespace

ExitCode run_summarize(const SummarizeArgs& args) { return Summarizer(args).run(); }

}  // namespace headrace
