// headrace bench quality: prints tables row by row, or one JSON object; with -o also to a file.
#include "runtime/commands/quality.h"

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/print/format.h"
#include "cli/print/interrupt.h"
#include "cli/print/quality_table.h"
#include "cli/print/result_file.h"

namespace headrace {

ExitCode run_quality(const QualityArgs& args) {
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
