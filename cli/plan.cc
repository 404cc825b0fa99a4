// headrace plan: the placement and cost of a run, or what would fit; a table, or one JSON object.
#include "runtime/commands/plan.h"

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags/presets.h"
#include "cli/print/format.h"
#include "cli/print/tables.h"

namespace headrace {

ExitCode run_command(const PlanArgs& args) {
  Console console(args.output, /*streams_text=*/false);
  const PlanReport report = make_plan_report(args.plan);
  if (!report.note.empty() && !args.output.quiet) console.progress().print_line("note: " + report.note);
  console.note_weights(report.weights_note);
  console.note_weights(preset_note(args.output.preset));
  console.note_weights(report.cache_note);
  const std::string text = args.output.json ? plan_json(report) : visible(format_plan(report));
  console.print(args.details ? text + visible(format_plan_details(report)) : text);
  console.finish();
  return report.run ? ExitCode::kDone : ExitCode::kDoesNotFit;
}

}  // namespace headrace
