#include "runtime/base/child_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr int kChildCheckMs = 50;
constexpr size_t kKeptErrorBytes = 4 * kKiB, kChildReadBytes = 64 * kKiB, kStackBytes = 64 * kKiB;

struct Pipe {
  Pipe() {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      throw_error(ExitCode::kDoesNotFit, "a pipe", str("cannot be created: ", std::strerror(errno)));
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(size_t end) {
    if (ends[end] >= 0) ::close(std::exchange(ends[end], -1));
  }
  std::array<int, 2> ends = {-1, -1};  // read, write
};

// What the child needs, in memory that it shares with its parent until it has executed the program.
struct Start {
  const char* path;
  char* const* argv;
  char* const* envp;
  std::array<int, 3> descriptors;
  uint64_t memory_bytes;
  pid_t parent;
  int error = 0;
};

void set_limit(int what, uint64_t bytes) {
  const rlimit both = {bytes, bytes};
  ::setrlimit(static_cast<__rlimit_resource_t>(what), &both);
}

// In the child, on a stack of its own, with all signals blocked: nothing that allocates or locks.
int start_program(void* argument) {
  Start& start = *static_cast<Start*>(argument);
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != start.parent) return 127;  // it has ended already
  struct sigaction usual = {};
  usual.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &usual, nullptr);
  std::array<int, 3> high{};  // above 2, so that no dup2() closes one that is still needed
  for (size_t i = 0; i < high.size(); ++i) high[i] = ::fcntl(start.descriptors[i], F_DUPFD_CLOEXEC, 3);
  for (size_t i = 0; i < high.size(); ++i) {
    if (high[i] < 0 || ::dup2(high[i], static_cast<int>(i)) < 0) {
      start.error = errno;
      return 127;
    }
  }
  ::close_range(3, ~0U, 0);
  set_limit(RLIMIT_AS, start.memory_bytes);
  set_limit(RLIMIT_CORE, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(start.path, start.argv, start.envp);
  start.error = errno;
  return 127;
}

pid_t start_child(const std::string& program, const std::vector<std::string>& args, const std::array<int, 3>& fds,
                  const ChildLimits& limits) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const char* const path = std::getenv("PATH");
  std::string search = str("PATH=", path == nullptr ? "" : path), language = "LC_ALL=C.UTF-8";
  std::array<char*, 3> envp = {search.data(), language.data(), nullptr};
  Start start{program.c_str(), argv.data(), envp.data(), fds, limits.memory_bytes, ::getpid()};
  const auto stack = std::make_unique<std::byte[]>(kStackBytes);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  // The parent's thread goes on when the child has executed the program, or ended.
  const pid_t child = ::clone(start_program, stack.get() + kStackBytes, CLONE_VM | CLONE_VFORK | SIGCHLD, &start);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (child < 0) throw_error(ExitCode::kDoesNotFit, program, str("cannot be started: ", std::strerror(error)));
  if (start.error != 0) {
    ::waitpid(child, nullptr, 0);
    throw_error(ExitCode::kBadInput, program, str("cannot be executed: ", std::strerror(start.error)));
  }
  return child;
}

// The running child; the destructor kills it.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill() {
    ::kill(-pid_, SIGKILL);  // what it has started, too
    if (!ended_) ::waitpid(pid_, &status_, 0);
    ended_ = true;
  }
  bool has_ended() {
    if (!ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) != 0;
    return ended_;
  }
  int status() const { return status_; }

 private:
  const pid_t pid_;
  int status_ = -1;
  bool ended_ = false;
};

// Appends what is there, of which at most `most` bytes are kept and one more. False: the end.
bool read_some(int fd, size_t most, std::string* out) {
  std::array<char, kChildReadBytes> buffer{};
  const ssize_t got = ::read(fd, buffer.data(), buffer.size());
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  out->append(buffer.data(), std::min(static_cast<size_t>(got), most + 1 - std::min(most + 1, out->size())));
  return got > 0;
}

using ChildClock = std::chrono::steady_clock;

// Reads both outputs until the child has ended, or a limit is reached.
ChildResult::End follow(Child* child, Pipe* out, Pipe* err, const ChildLimits& limits, ChildResult* result) {
  const auto end = ChildClock::now() + std::chrono::duration<double>(limits.seconds);
  for (;;) {
    if (limits.interrupt != nullptr && limits.interrupt->load(std::memory_order_relaxed))
      return ChildResult::End::kInterrupted;
    if (ChildClock::now() > end) return ChildResult::End::kTooSlow;
    const bool ended = child->has_ended();  // before the read: what it wrote is all there
    std::array<pollfd, 2> wanted = {{{out->ends[0], POLLIN, 0}, {err->ends[0], POLLIN, 0}}};
    const bool some = ::poll(wanted.data(), wanted.size(), ended ? 0 : kChildCheckMs) > 0;
    if (ended && !some) return ChildResult::End::kExited;
    if (wanted[0].revents != 0 && !read_some(out->ends[0], limits.output_bytes, &result->out)) out->close_end(0);
    if (wanted[1].revents != 0 && !read_some(err->ends[0], kKeptErrorBytes - 1, &result->err)) err->close_end(0);
    if (result->out.size() > limits.output_bytes) return ChildResult::End::kTooLong;
  }
}

}  // namespace

std::optional<std::string> find_program(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string file = str(rest.substr(0, end), "/", name);
    struct stat info = {};
    if (rest.front() == '/' && ::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
        ::access(file.c_str(), X_OK) == 0)
      return file;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return std::nullopt;
}

ChildResult run_child(const std::string& program, const std::vector<std::string>& args, int standard_input,
                      const ChildLimits& limits) {
  Pipe out, err;
  Child child(start_child(program, args, {standard_input, out.ends[1], err.ends[1]}, limits));
  out.close_end(1);
  err.close_end(1);
  ChildResult result;
  result.end = follow(&child, &out, &err, limits, &result);
  child.kill();
  if (result.end != ChildResult::End::kExited) return result;
  const int status = child.status();
  result.end = WIFSIGNALED(status) ? ChildResult::End::kSignal : ChildResult::End::kExited;
  result.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

}  // namespace headrace
