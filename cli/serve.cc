// headrace serve: an OpenAI-compatible server. The main thread owns the engine and answers; StopSignals end it.

#include <chrono>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/print/format.h"
#include "cli/print/report.h"
#include "runtime/commands/shared_rows.h"
#include "runtime/server/server.h"
#include "runtime/server/stop_signals.h"
#include "runtime/server/worker.h"

namespace headrace {
namespace {

// After a signal. A step of a large model or the loading of its weights takes longer, and nothing that is left would be
// of use.
constexpr std::chrono::milliseconds kLongestEnd{1500};

// A line a request: what it cost, never what it was.
WorkerEvents report_to(Console& console) {
  return {.on_result =
              [&console](const Job& job, const GenerateResult& result) {
                console.note_result(result);
                console.progress().print_line(str(job.id, ": ", format_summary_line(result)));
              },
          .on_failure =
              [&console](const Job& job, const Failure& failure) {
                console.progress().print_line(str(job.id, ": ", failure.status, " ", failure.code));
              }};
}

}  // namespace

ExitCode run_command(const ServeArgs& args) {
  JobQueue queue(static_cast<size_t>(args.server.queue));  // before the signals, whose call uses it
  StopSignals signals;
  signals.call([&queue] { queue.close(); }, kLongestEnd);
  Console console(args.output, /*streams_text=*/false);
  Engine engine(console.with_rates(args.engine));
  console.note_engine(engine);
  ServerMetrics metrics;
  Server server(engine, args.server, queue, metrics);
  GenerateOptions usual = args.generate;
  usual.log_probs = LogProbs::kReserved;  // requests with and without them share the kept rows
  usual.rules_reserved = true;            // and so do those with and without a schema or penalties
  if (may_share_rows(args.engine)) usual.keep = KeepRows::kPrompt;
  Worker worker(engine, queue, metrics, usual, report_to(console));
  try {
    worker.load(&console.progress());
    server.set_ready();
    console.progress().print_line("listening on " + server.address());
    worker.run();
  } catch (...) {  // what ended the engine ends the program, once the clients know
    queue.close();
    server.finish();
    throw;
  }
  server.finish();
  if (const auto trace = engine.write_trace()) console.report_trace(*trace);
  console.finish();
  return ExitCode::kDone;
}

}  // namespace headrace
