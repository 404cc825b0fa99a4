#include "tests/cli/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>

#include "cache/base.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

// No program of a test takes as long: one that does hangs.
Clock::time_point end_of_patience() { return Clock::now() + std::chrono::seconds(testing::kSanitized ? 600 : 120); }

int ms_until(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(left, 0));
}

// What exec() takes, made before the fork: another thread of the test may hold the allocator's lock while the process
// is copied, and nobody gives it back in the child. So the child calls only what a signal handler may call.
class Command {
 public:
  Command(const std::vector<std::string>& args, const RunOptions& options) : options_(options) {
    words_.emplace_back(HEADRACE_PROGRAM);
    words_.insert(words_.end(), args.begin(), args.end());
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view entry = *variable;
      if (!entry.starts_with("HEADRACE_") && !entry.starts_with("XDG_CACHE_HOME=") && !is_given(entry))
        variables_.emplace_back(entry);
    }
    for (const auto& [name, value] : options.environment) variables_.push_back(name + "=" + value);
    argv_ = pointers(&words_), envp_ = pointers(&variables_);
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // In the child.
  [[noreturn]] void execute() const {
    set_default_signals();
    if (options_.file_bytes > 0) {
      const rlimit limit = {options_.file_bytes, options_.file_bytes};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    for (const int fd : options_.closed) ::close(fd);
    for (const auto& [resource, value] : options_.limits) {
      const rlimit limit{.rlim_cur = value, .rlim_max = value};
      if (::setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) ::_exit(126);
    }
    ::execve(argv_[0], argv_.data(), envp_.data());
    ::_exit(127);
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>* strings) {
    std::vector<char*> out;
    for (std::string& string : *strings) out.push_back(string.data());
    out.push_back(nullptr);
    return out;
  }

  bool is_given(std::string_view entry) const {
    const std::string_view name = entry.substr(0, entry.find('='));
    return std::any_of(options_.environment.begin(), options_.environment.end(),
                       [&](const auto& variable) { return variable.first == name; });
  }

  // What a shell does before it starts a command. A job in the background of a script has SIGINT ignored, and what is
  // ignored stays so in what it starts: Ctrl-C would not reach the program.
  static void set_default_signals() {
    for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);  // fails for those that cannot be caught
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
  }

  const RunOptions& options_;
  std::vector<std::string> words_, variables_;
  std::vector<char*> argv_, envp_;
};

struct Pipe {
  Pipe() { CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0); }
  ~Pipe() { close_read(), close_write(); }
  void close_read() { close_end(0); }
  void close_write() { close_end(1); }
  void close_end(size_t i) {
    if (ends[i] >= 0) ::close(ends[i]);
    ends[i] = -1;
  }
  int read_end() const { return ends[0]; }
  int write_end() const { return ends[1]; }
  std::array<int, 2> ends = {-1, -1};
};

// Writes `input` and reads both outputs until all three are at their end, or until `end`.
void exchange(std::string input, Clock::time_point end, Pipe* in, Pipe* out, Pipe* err, Finished* result) {
  ::fcntl(in->write_end(), F_SETFL, O_NONBLOCK);
  while (in->write_end() >= 0 || out->read_end() >= 0 || err->read_end() >= 0) {
    if (input.empty()) in->close_write();
    std::array<pollfd, 3> wanted = {
        {{in->write_end(), POLLOUT, 0}, {out->read_end(), POLLIN, 0}, {err->read_end(), POLLIN, 0}}};
    if (Clock::now() >= end) return;
    if (::poll(wanted.data(), wanted.size(), ms_until(end)) <= 0) continue;
    if (wanted[0].revents != 0) {
      const ssize_t wrote = ::write(in->write_end(), input.data(), input.size());
      if (wrote < 0 && errno != EAGAIN) input.clear();  // the program does not read it
      if (wrote > 0) input.erase(0, static_cast<size_t>(wrote));
    }
    const auto drain = [](const pollfd& ready, Pipe* pipe, std::string* text) {
      if (ready.revents == 0) return;
      char buffer[4096];
      const ssize_t got = ::read(pipe->read_end(), buffer, sizeof buffer);
      if (got <= 0) return pipe->close_read();
      text->append(buffer, static_cast<size_t>(got));
    };
    drain(wanted[1], out, &result->out);
    drain(wanted[2], err, &result->err);
  }
}

// Waits for the end of the program until `end`, then kills it and fails, with its name and what it has printed.
void wait_for(pid_t pid, const std::vector<std::string>& args, Clock::time_point end, Finished* result) {
  int status = 0;
  for (pid_t ended; (ended = ::waitpid(pid, &status, WNOHANG)) != pid;) {
    CHECK(ended == 0, "errno=", errno);
    if (Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    std::string line = "headrace";
    for (const std::string& arg : args) line += " " + arg;
    ADD_FAILURE() << "killed, because it did not end: " << line << "\nstandard output:\n"
                  << result->out << "\nstandard error:\n"
                  << result->err;
    ::kill(pid, SIGKILL);
    CHECK(::waitpid(pid, &status, 0) == pid, "errno=", errno);
    break;
  }
  if (WIFEXITED(status)) result->exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result->signal = WTERMSIG(status);
}

}  // namespace

Finished run_program(const std::vector<std::string>& args, const RunOptions& options) {
  static const bool ignored = ::signal(SIGPIPE, SIG_IGN) != SIG_ERR;
  CHECK(ignored);
  Pipe in, out, err;
  const Command command(args, options);
  const pid_t pid = ::fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    ::dup2(in.read_end(), STDIN_FILENO);
    const int file = options.stdout_path.empty() ? -1 : ::open(options.stdout_path.c_str(), O_WRONLY | O_CLOEXEC);
    ::dup2(file >= 0 ? file : out.write_end(), STDOUT_FILENO);
    ::dup2(err.write_end(), STDERR_FILENO);
    command.execute();
  }
  in.close_read(), out.close_write(), err.close_write();
  Finished result;
  const Clock::time_point end = end_of_patience();
  exchange(options.input, end, &in, &out, &err, &result);
  wait_for(pid, args, end, &result);
  return result;
}

std::string no_terminal() {
  int terminal = -1, inside = -1;
  if (::openpty(&terminal, &inside, nullptr, nullptr, nullptr) != 0) {
    return str("no terminal can be opened: ", std::strerror(errno), " (is /dev/pts mounted?)");
  }
  ::close(terminal);
  ::close(inside);
  return "";
}

Program::Program(const std::vector<std::string>& args, Streams streams) : args_(args) {
  winsize size = {};
  size.ws_col = 100, size.ws_row = 30;
  RunOptions options;
  options.environment = {{"TERM", "xterm"}};
  const Command command(args, options);
  pid_ = streams == Streams::kTerminal ? ::forkpty(&terminal_, nullptr, nullptr, &size) : ::fork();
  CHECK(pid_ >= 0, "errno=", errno);
  if (pid_ != 0) return;
  if (streams == Streams::kNone) {
    const int nothing = ::open("/dev/null", O_RDWR);
    for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, fd);
  }
  command.execute();
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    wait();
  }
  if (terminal_ >= 0) ::close(terminal_);
}

bool Program::read_some(int timeout_ms) {
  pollfd wanted = {terminal_, POLLIN, 0};
  if (terminal_ < 0 || ::poll(&wanted, 1, timeout_ms) <= 0) return false;
  char buffer[4096];
  const ssize_t got = ::read(terminal_, buffer, sizeof buffer);  // EIO at the end of the program
  if (got <= 0) return false;
  seen_.append(buffer, static_cast<size_t>(got));
  return true;
}

bool Program::read_until(const std::string& text) {
  const auto end = Clock::now() + std::chrono::seconds(60);
  while (seen_.find(text) == std::string::npos) {
    if (Clock::now() > end || !read_some(60000)) return false;
  }
  matched_ = seen_.find(text) + text.size();
  return true;
}

bool Program::read_next(const std::string& text) {
  const auto end = Clock::now() + std::chrono::seconds(60);
  while (seen_.find(text, matched_) == std::string::npos) {
    if (Clock::now() > end || !read_some(60000)) return false;
  }
  matched_ = seen_.find(text, matched_) + text.size();
  return true;
}

bool Program::read_bytes(size_t count) {
  while (seen_.size() < count) {
    if (!read_some(60000)) return false;
  }
  return true;
}

void Program::type(const std::string& keys) {
  CHECK(::write(terminal_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
}

void Program::send(int signal) { ::kill(pid_, signal); }

bool Program::running() {
  siginfo_t info = {};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

Finished Program::wait() {
  const Clock::time_point end = end_of_patience();
  while (Clock::now() < end && read_some(ms_until(end))) {
  }
  Finished result;
  result.out = seen_;
  wait_for(pid_, args_, end, &result);
  pid_ = -1;
  return result;
}

size_t lines_written(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>(), '\n'));
}

bool wait_for_lines(const std::filesystem::path& file, size_t count, Program* program) {
  const Clock::time_point end = end_of_patience();
  while (Clock::now() < end) {
    if (lines_written(file) >= count) return true;
    if (!program->running()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace headrace
