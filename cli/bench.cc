// headrace bench: a table on stdout as the rows are done, or one JSON object; into a file as well if asked.
#include "runtime/bench.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cli/bench_table.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "runtime/model/shapes.h"

namespace headrace {
namespace {

// Opened before the work: a place that cannot be written to is said at once. What the file held stays until there are
// results to take its place; a file that was made here and got none goes again.
class ResultFile {
 public:
  explicit ResultFile(const std::string& path) : path_(path) {
    if (path.empty()) return;
    fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0 && errno == ENOENT) {
      fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
      made_ = fd_ >= 0;
    }
    if (fd_ < 0) fail();
  }
  ~ResultFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    if (made_) ::unlink(path_.c_str());
  }
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  void write(const std::string& text) {
    if (fd_ < 0) return;
    if (::ftruncate(fd_, 0) != 0 && errno != EINVAL) fail();  // EINVAL: a pipe or a device
    for (size_t done = 0; done < text.size();) {
      const ssize_t here = ::write(fd_, text.data() + done, text.size() - done);
      if (here < 0 && errno != EINTR) fail();
      if (here > 0) done += static_cast<size_t>(here);
    }
    if (::close(std::exchange(fd_, -1)) != 0) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw_error(ExitCode::kStorage, path_, str("cannot be written: ", std::strerror(errno)));
  }

  const std::string path_;
  int fd_ = -1;
  bool made_ = false;
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
