#include "cli/line_editor.h"

#include <clocale>
#include <cstdio>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr int kHistoryLines = 1000;
constexpr std::chrono::seconds kAtOnce(1);

const char* prompt(EditLine*) { return "> "; }

// libedit reads characters of the locale: without one that has UTF-8 a letter beyond ASCII would be lost.
void set_locale() {
  if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

LineEditor::LineEditor() {
  struct sigaction nothing = {};
  nothing.sa_handler = [](int) {};
  nothing.sa_flags = SA_RESTART;
  sigemptyset(&nothing.sa_mask);
  sigaction(SIGINT, &nothing, &old_);
  set_locale();
  history_.reset(history_init());
  edit_.reset(el_init("headrace", stdin, stderr, stderr));
  if (!history_ || !edit_) throw_error(ExitCode::kInternal, "the terminal", "libedit cannot read lines from it");
  HistEvent event;
  history(history_.get(), &event, H_SETSIZE, kHistoryLines);
  history(history_.get(), &event, H_SETUNIQUE, 1);
  el_set(edit_.get(), EL_CLIENTDATA, this);
  el_set(edit_.get(), EL_PROMPT, prompt);
  el_set(edit_.get(), EL_EDITOR, "emacs");
  el_set(edit_.get(), EL_SIGNAL, 1);
  el_set(edit_.get(), EL_HIST, history, history_.get());
  el_source(edit_.get(), nullptr);
  // While a line is edited, Ctrl-C is a key.
  el_set(edit_.get(), EL_SETTY, "-d", "-isig", nullptr);
  el_set(edit_.get(), EL_ADDFN, "headrace-interrupt", "Give the line up", on_interrupt);
  el_set(edit_.get(), EL_BIND, "^C", "headrace-interrupt", nullptr);
  el_set(edit_.get(), EL_ADDFN, "headrace-zero", "End the input if Ctrl-D was typed before the prompt", on_zero);
  el_set(edit_.get(), EL_BIND, "^@", "headrace-zero", nullptr);
}

LineEditor::~LineEditor() { sigaction(SIGINT, &old_, nullptr); }

LineEditor& LineEditor::of(EditLine* edit) {
  void* self = nullptr;
  el_get(edit, EL_CLIENTDATA, &self);
  return *static_cast<LineEditor*>(self);
}

unsigned char LineEditor::on_interrupt(EditLine* edit, int) {
  of(edit).interrupted_ = true;
  return CC_EOF;
}

// A Ctrl-D that was typed in canonical mode, before the editor had the terminal, arrives as a zero, and at once. A
// later zero is Ctrl-Space, which does nothing.
unsigned char LineEditor::on_zero(EditLine* edit, int) {
  const LineInfo* const line = el_line(edit);
  const bool empty = line->lastchar == line->buffer;
  return empty && Clock::now() < of(edit).begun_ + kAtOnce ? CC_EOF : CC_NORM;
}

LineEditor::Outcome LineEditor::read(std::string* line) {
  interrupted_ = false;
  begun_ = Clock::now();
  int count = 0;
  const char* const text = el_gets(edit_.get(), &count);
  if (text == nullptr || count <= 0) {
    std::fputc('\n', stderr);
    return interrupted_ ? Outcome::kInterrupt : Outcome::kEnd;
  }
  line->assign(text, static_cast<size_t>(count));
  while (!line->empty() && (line->back() == '\n' || line->back() == '\r')) line->pop_back();
  HistEvent event;
  if (!line->empty()) history(history_.get(), &event, H_ENTER, line->c_str());
  return Outcome::kLine;
}

}  // namespace headrace
