// headrace bench quality, with --perplexity and --draft-needle too: prints tables row by row, or one JSON object; with
// -o also to a file.
#include "runtime/commands/quality/quality.h"

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

ExitCode run_perplexity(const QualityArgs& args) {
  ResultFile file(args.results, json_beginning("headrace bench quality"));
  const Interrupt interrupt;
  Console console(args.output, /*streams_text=*/false);
  const auto say = [&](const std::string& text) {
    if (!args.output.json) console.print(visible(text));
  };
  PerplexityOptions options{.engine = args.quality.engine,
                            .documents = args.quality.documents,
                            .most_tokens = args.most_tokens,
                            .interrupt = interrupt.flag(),
                            .outputs = {args.results}};
  options.engine.use_chat_template = false;  // a document is plain text
  PerplexityHooks hooks;
  hooks.progress = &console.progress();
  hooks.on_engine = [&](const Engine& engine) { console.note_engine(engine); };
  hooks.on_row = [&](const PerplexityReport& so_far) {
    if (so_far.rows.size() == 1) {
      for (const std::string& line : so_far.damage) console.warn(line);
      say(perplexity_heading(so_far));
    }
    say(perplexity_line(so_far.rows.back()));
  };
  const PerplexityReport report = run_perplexity(options, hooks);
  const std::string json = perplexity_json(report);
  file.write(json);
  if (args.output.json) console.print(json);
  say(perplexity_summary(report));
  console.finish();
  return report.interrupted ? ExitCode::kInterrupted : ExitCode::kDone;
}

ExitCode run_draft_needle(const QualityArgs& args) {
  ResultFile file(args.results, json_beginning("headrace bench quality"));
  const Interrupt interrupt;
  Console console(args.output, /*streams_text=*/false);
  const auto say = [&](const std::string& text) {
    if (!args.output.json) console.print(visible(text));
  };
  QualityOptions options = args.quality;
  options.interrupt = interrupt.flag();
  options.outputs = {args.results};
  DraftNeedleHooks hooks;
  hooks.progress = &console.progress();
  hooks.on_engine = [&](const Engine& engine) { console.note_engine(engine); };
  hooks.on_begin = [&](const std::string& label) { console.progress().set_label(label); };
  hooks.on_row = [&](const DraftNeedleReport& so_far) {
    if (so_far.rows.size() == 1) say(draft_needle_heading(so_far));
    say(draft_needle_line(so_far.rows.back()));
  };
  const DraftNeedleReport report = run_draft_needle(options, hooks);
  const std::string json = draft_needle_json(report);
  file.write(json);
  if (args.output.json) console.print(json);
  say(draft_needle_summary(report));
  console.finish();
  return report.interrupted ? ExitCode::kInterrupted : ExitCode::kDone;
}

}  // namespace

ExitCode run_quality(const QualityArgs& args) {
  if (args.perplexity) return run_perplexity(args);
  if (args.draft_needle) return run_draft_needle(args);
  ResultFile file(args.results, json_beginning("headrace bench quality"));
  const Interrupt interrupt;
  Console console(args.output, /*streams_text=*/false);
  const auto say = [&](const std::string& text) {
    if (!args.output.json) console.print(visible(text));
  };
  QualityOptions options = args.quality;
  options.interrupt = interrupt.flag();
  options.outputs = {args.results, options.engine.device.trace_path};
  size_t headings = 0;
  QualityHooks hooks;
  hooks.progress = &console.progress();
  hooks.on_engine = [&](const Engine& engine) { console.note_engine(engine); };
  hooks.on_begin = [&](const std::string& label) { console.progress().set_label(label); };
  hooks.on_row = [&](const QualityReport& so_far) {
    say(headings == 0 ? quality_heading(so_far) : std::string());
    ++headings;
    say(quality_line(so_far.rows.back()));
  };
  hooks.on_needle = [&](const QualityReport& so_far) {
    say(so_far.needles.size() == 1 ? needle_heading() : std::string());
    say(needle_line(so_far.needles.back()));
  };
  const QualityReport report = run_quality(options, hooks);
  const std::string json = quality_json(report);
  file.write(json);
  if (args.output.json) console.print(json);
  say(quality_summary(report));
  console.finish();
  if (report.interrupted) return ExitCode::kInterrupted;
  return report.lossless() ? ExitCode::kDone : ExitCode::kInternal;
}

}  // namespace headrace
