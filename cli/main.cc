// headrace: selects the command, runs it and returns the exit code. The only place that catches an Error to end the
// program.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <system_error>
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

int fail(ExitCode code, const char* message) {
  std::fprintf(stderr, "error: %s\n", visible(message).c_str());
  return static_cast<int>(code);
}

int run(int argc, char** argv) {
  try {
    const ExitCode code = std::visit([](const auto& args) { return run_command(args); },
                                     parse_args(std::vector<std::string>(argv + 1, argv + argc)));
    finish_stdout();
    return static_cast<int>(code);
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(
        ExitCode::kDoesNotFit,
        "out of memory outside the budgets\n  Lower --host-mem or the context, or give the program more memory");
  } catch (const std::exception& error) {
    return fail(ExitCode::kInternal, error.what());
  }
}

}  // namespace

ExitCode run_command(const HelpArgs& args) {
  std::fputs(args.text.c_str(), stdout);
  return ExitCode::kDone;
}

ExitCode run_command(const ManualArgs& args) {
  for (const ManualFile& file : args.files) {
    const std::filesystem::path path = std::filesystem::path(args.folder) / file.name;
    std::error_code ignored;  // where the folder is missing, opening the file says so
    std::filesystem::create_directories(path.parent_path(), ignored);
    std::ofstream out(path, std::ios::binary);
    out << file.text << std::flush;
    if (!out) throw_error(ExitCode::kStorage, path.string(), "cannot be written");
  }
  return ExitCode::kDone;
}

}  // namespace headrace

int main(int argc, char** argv) {
  if (!headrace::open_standard_descriptors()) return static_cast<int>(headrace::ExitCode::kStorage);
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond ulimit -f then fails, as on a full disk
  return headrace::run(argc, argv);
}
