// headrace bench quality, with --perplexity and --draft-needle too: prints tables row by row, or one JSON object; with
// -o also to a file.
#include "runtime/commands/quality/quality.h"

#include <atomic>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/print/format.h"
#include "cli/print/interrupt.h"
#include "cli/print/result_file.h"
#include "cli/print/tables.h"
#include "runtime/commands/quality/draft_needle.h"
#include "runtime/commands/quality/perplexity.h"

namespace headrace {
namespace {

// The output of a measurement: tables or JSON on stdout, and the file of -o. Owns Ctrl-C while it lasts.
class QualityOutput {
 public:
  explicit QualityOutput(const QualityArgs& args)
      : json_(args.output.json),
        file_(args.results, json_beginning("headrace bench quality")),
        console_(args.output, /*streams_text=*/false) {}

  const std::atomic<bool>* interrupt() const { return interrupt_.flag(); }
  void warn(const std::string& line) { console_.warn(line); }
  // A part of a table, which --json leaves out.
  void print(const std::string& text) {
    if (!json_) console_.print(visible(text));
  }
  void finish(const std::string& json, const std::string& summary) {
    file_.write(json);
    if (json_) console_.print(json);
    print(summary);
    console_.finish();
  }

  // With the hooks that show progress.
  template <typename Hooks>
  Hooks hooks() {
    Hooks made;
    made.progress = &console_.progress();
    made.on_engine = [this](const Engine& engine) { console_.note_engine(engine); };
    if constexpr (requires { made.on_begin; }) {
      made.on_begin = [this](const std::string& label) { console_.progress().set_label(label); };
    }
    return made;
  }

 private:
  const bool json_;
  ResultFile file_;
  const Interrupt interrupt_;
  Console console_;
};

ExitCode run_perplexity(const QualityArgs& args) {
  QualityOutput output(args);
  PerplexityOptions options{.engine = args.quality.engine,
                            .documents = args.quality.documents,
                            .most_tokens = args.most_tokens,
                            .interrupt = output.interrupt(),
                            .outputs = {args.results},
                            .against = args.against};
  options.engine.use_chat_template = false;  // a document is plain text
  options.engine.draft.type = SpecType::kNone;
  auto hooks = output.hooks<PerplexityHooks>();
  hooks.on_row = [&](const PerplexityReport& so_far) {
    if (so_far.rows.size() == 1) {
      for (const std::string& line : so_far.damage) output.warn(line);
      output.print(perplexity_heading(so_far));
    }
    output.print(perplexity_line(so_far.rows.back()));
  };
  const PerplexityReport report = run_perplexity(options, hooks);
  output.finish(perplexity_json(report), perplexity_summary(report));
  return report.interrupted ? ExitCode::kInterrupted : ExitCode::kDone;
}

ExitCode run_draft_needle(const QualityArgs& args) {
  QualityOutput output(args);
  QualityOptions options = args.quality;
  options.interrupt = output.interrupt();
  options.outputs = {args.results};
  auto hooks = output.hooks<DraftNeedleHooks>();
  hooks.on_row = [&](const DraftNeedleReport& so_far) {
    if (so_far.rows.size() == 1) output.print(draft_needle_heading(so_far));
    output.print(draft_needle_line(so_far.rows.back()));
  };
  const DraftNeedleReport report = run_draft_needle(options, hooks);
  output.finish(draft_needle_json(report), draft_needle_summary(report));
  return report.interrupted ? ExitCode::kInterrupted : ExitCode::kDone;
}

}  // namespace

ExitCode run_command(const QualityArgs& args) {
  if (args.perplexity) return run_perplexity(args);
  if (args.draft_needle) return run_draft_needle(args);
  QualityOutput output(args);
  QualityOptions options = args.quality;
  options.interrupt = output.interrupt();
  options.outputs = {args.results, options.engine.device.trace_path};
  bool headed = false;
  auto hooks = output.hooks<QualityHooks>();
  hooks.on_row = [&](const QualityReport& so_far) {
    if (!headed) output.print(quality_heading(so_far));
    headed = true;
    output.print(quality_line(so_far.rows.back()));
  };
  hooks.on_needle = [&](const QualityReport& so_far) {
    if (so_far.needles.size() == 1) output.print(needle_heading());
    output.print(needle_line(so_far.needles.back()));
  };
  const QualityReport report = run_quality(options, hooks);
  output.finish(quality_json(report), quality_summary(report));
  if (report.interrupted) return ExitCode::kInterrupted;
  return report.lossless() ? ExitCode::kDone : ExitCode::kInternal;
}

}  // namespace headrace
