// headrace bench: prints a table row by row, or one JSON object; with -o also to a file.
#include "runtime/commands/bench.h"

#include <cstdio>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/print/format.h"
#include "cli/print/interrupt.h"
#include "cli/print/result_file.h"
#include "cli/print/tables.h"
#include "runtime/model/files/shapes.h"

namespace headrace {
namespace {

ExitCode exit_code(const BenchReport& report) {
  if (report.interrupted) return ExitCode::kInterrupted;
  for (const BenchRow& row : report.rows) {
    if (!row.error.empty()) return ExitCode::kDoesNotFit;
  }
  return ExitCode::kDone;
}

}  // namespace

ExitCode run_command(const BenchArgs& args) {
  ResultFile file(args.results, json_beginning("headrace bench"));
  const Interrupt interrupt;
  Console console(args.output, /*streams_text=*/false);
  BenchOptions options = args.bench;
  options.interrupt = interrupt.flag();
  options.engine = console.with_rates(options.engine);
  BenchHooks hooks;
  hooks.progress = &console.progress();
  hooks.on_device = [&](const Device& device) { console.note_device(device); };
  hooks.on_begin = [&](const std::string& label) { console.progress().set_label(label); };
  hooks.on_row = [&](const BenchReport& so_far) {
    if (so_far.rows.size() == 1) {
      console.note_weights(so_far.weights_note);
      console.note_weights(so_far.cache_note);
    }
    if (args.output.json) return;
    console.print(so_far.rows.size() == 1 ? visible(bench_heading(so_far)) : std::string());
    console.print(bench_line(so_far, so_far.rows.back()));
  };
  const BenchReport report = run_bench(options, hooks);
  const std::string json = bench_json(report);
  file.write(json);
  if (args.output.json) console.print(json);
  if (report.trace) console.report_trace(*report.trace);
  console.finish();
  return exit_code(report);
}

ExitCode run_command(const ShapesArgs&) {
  std::string text;
  for (const Shape& shape : known_shapes()) text += shape_line(shape);
  std::fputs(text.c_str(), stdout);
  return ExitCode::kDone;
}

}  // namespace headrace
