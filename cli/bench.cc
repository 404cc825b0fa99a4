// headrace bench: a table on stdout as the rows are done, or one JSON object; into a file as well if asked.
#include "runtime/bench.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cli/bench_table.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "runtime/model/shapes.h"

namespace headrace {
namespace {

// Opened before the work: a place that cannot be written to is said at once.
class ResultFile {
 public:
  explicit ResultFile(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_ = std::fopen(path.c_str(), "we");
    if (file_ == nullptr) fail();
  }
  ~ResultFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  void write(const std::string& text) {
    if (file_ == nullptr) return;
    const bool written = std::fwrite(text.data(), 1, text.size(), file_) == text.size();
    const bool closed = std::fclose(file_) == 0;
    file_ = nullptr;
    if (!written || !closed) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw_error(ExitCode::kStorage, path_, str("cannot be written: ", std::strerror(errno)));
  }

  const std::string path_;
  FILE* file_ = nullptr;
};

ExitCode exit_code(const BenchReport& report) {
  if (report.interrupted) return ExitCode::kInterrupted;
  for (const BenchRow& row : report.rows) {
    if (!row.error.empty()) return ExitCode::kDoesNotFit;
  }
  return ExitCode::kDone;
}

}  // namespace

ExitCode run_bench(const BenchArgs& args) {
  ResultFile file(args.results);
  const Interrupt interrupt;
  Console console(args.output, /*streams_text=*/false);
  BenchOptions options = args.bench;
  options.interrupt = interrupt.flag();
  BenchHooks hooks;
  hooks.progress = &console.progress();
  hooks.on_device = [&](const Device& device) { console.note_device(device); };
  hooks.on_begin = [&](const std::string& label) { console.progress().set_label(label); };
  hooks.on_row = [&](const BenchReport& so_far) {
    if (args.output.json) return;
    console.print(so_far.rows.size() == 1 ? bench_heading(so_far) : std::string());
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

ExitCode run_shapes(const ShapesArgs&) {
  std::string text;
  for (const Shape& shape : known_shapes()) text += shape_line(shape);
  std::fputs(text.c_str(), stdout);
  return ExitCode::kDone;
}

}  // namespace headrace
