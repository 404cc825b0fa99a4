// Lines that a user types on a terminal, with editing and a history, by libedit (its settings are in ~/.editrc). The
// prompt and the echo go to stderr, so that stdout has the answers alone. Owns libedit's state, and the handler of
// SIGINT: Ctrl-C between two lines does nothing, unless a class for running work takes it over (Interrupt). Thread:
// one.
#pragma once

#include <histedit.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

class LineEditor {
 public:
  // Throws Error(kInternal) if libedit cannot start.
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Outcome { kLine, kEnd, kInterrupt };  // kEnd: Ctrl-D on an empty line; kInterrupt: Ctrl-C
  // Without its end. Text that is pasted is one line, which may have newlines. `prompt`: in its place.
  Outcome read(std::string* line, const char* prompt = "> ");
  // What Tab completes at the beginning of a line; those that end in a blank take the name of a file.
  void complete(std::vector<std::string> commands) { commands_ = std::move(commands); }

 private:
  using Clock = std::chrono::steady_clock;
  static LineEditor& of(EditLine* edit);
  static unsigned char on_interrupt(EditLine* edit, int);
  static unsigned char on_zero(EditLine* edit, int);
  static unsigned char on_paste(EditLine* edit, int);
  static unsigned char on_tab(EditLine* edit, int key);
  static char* prompt_of(EditLine* edit);

  struct EndEdit {
    void operator()(EditLine* edit) const { el_end(edit); }
  };
  struct EndHistory {
    void operator()(History* history) const { history_end(history); }
  };
  std::unique_ptr<History, EndHistory> history_;
  std::unique_ptr<EditLine, EndEdit> edit_;  // after the history, which it reads
  bool interrupted_ = false;
  std::string prompt_;
  std::vector<std::string> commands_;
  Clock::time_point begun_;  // when read() was called
  struct sigaction old_ = {};
};

}  // namespace headrace
