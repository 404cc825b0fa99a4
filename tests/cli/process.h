// The program run as a user runs it: with pipes, or on a terminal of its own (a pseudo-terminal). Owns the child and
// kills it if the test ends first. No wait is without end: a program that has not ended after 120 s (600 s under
// sanitizers) is killed, and the test fails with its command and what it printed. Thread: one.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

struct Finished {
  int exit_code = -1;  // -1 if a signal ended it
  int signal = 0;
  std::string out, err;
};

struct RunOptions {
  std::string input;                                               // standard input
  std::vector<std::pair<std::string, std::string>> environment{};  // added
  std::string stdout_path{};                                       // instead of a pipe
  std::vector<std::pair<int, uint64_t>> limits{};                  // RLIMIT_…, soft and hard
  std::vector<int> closed{};                                       // descriptors, of 0 to 2
  uint64_t file_bytes{};                                           // ulimit -f; 0: none
};

// Runs HEADRACE_PROGRAM to its end, without HEADRACE_* and XDG_CACHE_HOME of the tests' environment.
Finished run_program(const std::vector<std::string>& args, const RunOptions& options = {});

// The program in the background. `terminal`: both of its streams on a pseudo-terminal of 100 columns.
class Program {
 public:
  enum class Streams { kTerminal, kNone };
  Program(const std::vector<std::string>& args, Streams streams);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Reads the terminal until `text` has been seen; false if the program ended or 60 s went by before.
  bool read_until(const std::string& text);
  bool read_next(const std::string& text);  // behind what was found last
  bool read_bytes(size_t count);            // the same for so much of whatever it shows
  void type(const std::string& keys);       // "\x03" is Ctrl-C
  void send(int signal);
  bool running();
  Finished wait();  // reads the rest; `out` holds all the terminal showed
 private:
  bool read_some(int timeout_ms);

  std::vector<std::string> args_;
  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string seen_;
  size_t matched_ = 0;  // the end of what was found last
};

// Why a program cannot be given a terminal here: a container may lack /dev/pts. Empty: it can.
std::string no_terminal();
#define SKIP_WITHOUT_A_TERMINAL() \
  if (const std::string why = no_terminal(); !why.empty()) GTEST_SKIP() << why

// The file's whole lines; 0 if there is no file.
size_t lines_written(const std::filesystem::path& file);

// Waits until the program has written so many lines; false if it ended or its time was over before.
bool wait_for_lines(const std::filesystem::path& file, size_t count, Program* program);

}  // namespace headrace
