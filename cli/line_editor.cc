#include "cli/line_editor.h"

#include <algorithm>
#include <clocale>
#include <cstdio>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr int kHistoryLines = 1000;
constexpr std::chrono::seconds kAtOnce(1);

// While a line is read, the terminal marks what is pasted, so that its newlines do not end the line.
constexpr char kPasteOn[] = "\033[?2004h", kPasteOff[] = "\033[?2004l";
constexpr std::wstring_view kPasteEnd = L"\033[201~";

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
  el_set(edit_.get(), EL_PROMPT, prompt_of);
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
  el_set(edit_.get(), EL_ADDFN, "headrace-paste", "Insert what is pasted", on_paste);
  el_set(edit_.get(), EL_BIND, "\\e[200~", "headrace-paste", nullptr);
  el_set(edit_.get(), EL_ADDFN, "headrace-complete", "Complete a command or the name of a file", on_tab);
  el_set(edit_.get(), EL_BIND, "^I", "headrace-complete", nullptr);
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

char* LineEditor::prompt_of(EditLine* edit) { return of(edit).prompt_.data(); }

// A terminal sends the end of a line as a carriage return.
unsigned char LineEditor::on_paste(EditLine* edit, int) {
  std::wstring text;
  for (wchar_t c = 0; !text.ends_with(kPasteEnd) && el_wgetc(edit, &c) == 1;) text += c == L'\r' ? L'\n' : c;
  if (text.ends_with(kPasteEnd)) text.resize(text.size() - kPasteEnd.size());
  while (!text.empty() && text.back() == L'\n') text.pop_back();
  if (el_winsertstr(edit, text.c_str()) != 0) return CC_ERROR;
  return CC_REFRESH;
}

// The command that the line begins, if there is one; else what all that begin so have in common.
unsigned char LineEditor::on_tab(EditLine* edit, int key) {
  const LineInfo* const line = el_line(edit);
  const std::string typed(line->buffer, static_cast<size_t>(line->cursor - line->buffer));
  if (!typed.starts_with('/')) return CC_ERROR;
  if (typed.find(' ') != std::string::npos) return _el_fn_complete(edit, key);
  std::string common;
  bool found = false;
  for (const std::string& command : of(edit).commands_) {
    if (!command.starts_with(typed)) continue;
    const auto end = std::mismatch(common.begin(), common.end(), command.begin(), command.end()).first;
    common = found ? std::string(common.begin(), end) : command;
    found = true;
  }
  if (common.size() <= typed.size()) return CC_ERROR;
  el_insertstr(edit, common.c_str() + typed.size());
  return CC_REFRESH;
}

LineEditor::Outcome LineEditor::read(std::string* line, const char* prompt) {
  interrupted_ = false;
  prompt_ = prompt;
  begun_ = Clock::now();
  int count = 0;
  std::fputs(kPasteOn, stderr);
  const char* const text = el_gets(edit_.get(), &count);
  std::fputs(kPasteOff, stderr);
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
