// headrace: selects the command, runs it and returns the exit code. The only place that catches an Error to end the
// program.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <variant>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags/args.h"
#include "cli/print/format.h"

namespace headrace {
namespace {

// Opens /dev/null for each closed descriptor of 0, 1 and 2, so that no file of this program gets that number and
// receives text or messages. Reading or writing there fails, as on a closed descriptor. False if this fails.
bool open_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // `fd` is the lowest free number. Opened for the other direction, so that using it fails.
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return false;
  }
  return true;
}

struct Run {
  ExitCode operator()(const HelpArgs& args) const {
    std::fputs(args.text.c_str(), stdout);
    return ExitCode::kDone;
  }
  ExitCode operator()(const DevicesArgs& args) const { return run_devices(args); }
  ExitCode operator()(const GenerateArgs& args) const { return run_generate(args); }
  ExitCode operator()(const SummarizeArgs& args) const { return run_summarize(args); }
  ExitCode operator()(const ChatArgs& args) const { return run_chat(args); }
  ExitCode operator()(const BatchArgs& args) const { return run_batch_requests(args); }
  ExitCode operator()(const BatchMergeArgs& args) const { return run_batch_merge(args); }
  ExitCode operator()(const ServeArgs& args) const { return run_serve(args); }
  ExitCode operator()(const InspectArgs& args) const { return run_inspect(args); }
  ExitCode operator()(const BenchArgs& args) const { return run_bench(args); }
  ExitCode operator()(const QualityArgs& args) const { return run_quality(args); }
  ExitCode operator()(const PlanArgs& args) const { return run_plan(args); }
  ExitCode operator()(const CacheArgs& args) const { return run_cache(args); }
  ExitCode operator()(const ProfileArgs& args) const { return run_profile(args); }
  ExitCode operator()(const ShapesArgs& args) const { return run_shapes(args); }
};

int fail(ExitCode code, const char* message) {
  std::fprintf(stderr, "error: %s\n", visible(message).c_str());
  return static_cast<int>(code);
}

int run(int argc, char** argv) {
  try {
    const ExitCode code = std::visit(Run(), parse_args(std::vector<std::string>(argv + 1, argv + argc)));
    finish_stdout();
    return static_cast<int>(code);
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(
        ExitCode::kDoesNotFit,
        "no memory is left, outside the budgets\n  Lower --host-mem or the context, or give the program more memory");
  } catch (const std::exception& error) {
    return fail(ExitCode::kInternal, error.what());
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  if (!headrace::open_standard_descriptors()) return static_cast<int>(headrace::ExitCode::kStorage);
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond ulimit -f then fails, as on a full disk
  return headrace::run(argc, argv);
}
