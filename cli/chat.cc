// headrace chat: documents, then questions and answers in turn, on a terminal or a pipe.
#include "runtime/commands/chat.h"

#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/line_editor.h"
#include "cli/print/format.h"
#include "cli/print/interrupt.h"
#include "cli/print/report.h"
#include "runtime/base/input_file.h"
#include "runtime/commands/report.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

using Outcome = LineEditor::Outcome;

// `note`: what was skipped in folders; empty: nothing.
std::string read_documents(const std::vector<std::string>& paths, const Engine& engine, const Interrupt& interrupt,
                           std::string* note) {
  const DocumentLimit limit = engine.document_limit();
  std::string text;
  if (paths.empty()) return text;
  std::vector<std::string> skipped;
  for (const std::string& file : expand_documents(paths, {}, &skipped)) {
    text += (text.empty() ? "" : "\n\n") + document_text(file, {.limit = limit, .interrupt = interrupt.flag()});
    check_document_size(file, text.size(), limit);
  }
  *note = skipped_note(skipped);
  return text;
}

class ChatProgram {
 public:
  explicit ChatProgram(const ChatArgs& args)
      : args_(args), console_(args.output, /*streams_text=*/true), engine_(console_.with_rates(args.engine)) {
    if (::isatty(STDIN_FILENO) != 0) editor_.emplace();
  }

  ExitCode run() {
    console_.note_engine(engine_);
    if (!read()) return ExitCode::kInterrupted;
    if (editor_ && !args_.output.quiet) console_.progress().print_line("Ask a question, or /help.");
    ExitCode code = ExitCode::kDone;
    for (std::string line; next_line(&line, &code);) {
      const ChatLine parsed = parse_chat_line(line);
      if (parsed.kind == ChatLine::Kind::kQuit) break;
      if (obey(parsed, &code)) continue;
      code = ExitCode::kInterrupted;
      break;
    }
    if (const auto trace = engine_.write_trace()) console_.report_trace(*trace);
    console_.finish();
    return code;
  }

 private:
  // The documents. False: interrupted.
  bool read() {
    const Interrupt interrupt;
    std::string skipped;
    chat_.emplace(engine_, ChatOptions{.system = args_.system,
                                       .document = read_documents(args_.paths, engine_, interrupt, &skipped),
                                       .generate = args_.generate});
    if (!skipped.empty() && !args_.output.quiet) console_.progress().print_line(skipped);
    const std::optional<GenerateResult> result =
        chat_->read({.on_text = {}, .interrupt = interrupt.flag(), .progress = &console_.progress()});
    if (!result) return true;
    last_ = *result;
    console_.note_result(*result);
    return result->finish_reason != FinishReason::kInterrupted;
  }

  // False: there are no more.
  bool next_line(std::string* line, ExitCode* code) {
    if (!editor_) return lines_.next(line);
    for (;;) {
      const Outcome outcome = editor_->read(line);
      const bool second = std::exchange(interrupted_, outcome == Outcome::kInterrupt);
      if (outcome == Outcome::kLine) return true;
      if (outcome == Outcome::kEnd) return false;
      if (second) *code = ExitCode::kInterrupted;
      if (second) return false;
      console_.progress().print_line("Ctrl-C again ends the chat");
    }
  }

  // False: a question from a pipe was interrupted.
  bool obey(const ChatLine& line, ExitCode* code) {
    try {
      switch (line.kind) {
        case ChatLine::Kind::kQuestion:
          return ask(line.text);
        case ChatLine::Kind::kNew:
          chat_->restart();
          return true;
        case ChatLine::Kind::kStats:
          show_stats();
          return true;
        case ChatLine::Kind::kSave:
          save(line.text);
          return true;
        case ChatLine::Kind::kHelp:
          console_.progress().clear();
          std::fputs(kChatHelp, stderr);
          return true;
        case ChatLine::Kind::kWrong:
          throw_error(ExitCode::kUsage, "chat", line.text);
        case ChatLine::Kind::kEmpty:
        case ChatLine::Kind::kQuit:
          return true;
      }
    } catch (const Error& error) {  // the conversation is as it was
      const ExitCode kind = error.code();
      const bool goes_on =
          kind == ExitCode::kBadInput || kind == ExitCode::kUsage || line.kind == ChatLine::Kind::kSave;
      if (!goes_on) throw;
      console_.end_text();
      console_.error(error.what());
      if (!editor_) *code = kind;
    }
    return true;
  }

  bool ask(const std::string& question) {
    const Interrupt interrupt;
    const GenerateResult result =
        chat_->ask(question, {.on_text = console_.text_sink(engine_, engine_.encode({.system = {}, .user = "?"})),
                              .interrupt = interrupt.flag(),
                              .progress = &console_.progress()});
    if (args_.output.json) console_.print(result_json(result) + "\n");
    console_.end_text();
    console_.note_result(result);
    last_ = result;
    console_.progress().print_line(str("[", format_chat_line(result), "; ", format_count(chat_->tokens()), " of ",
                                       format_count(engine_.context_limit()), " tokens]"));
    const bool cut = result.finish_reason == FinishReason::kInterrupted;
    interrupted_ = cut;
    return !cut || editor_;
  }

  void show_stats() {
    console_.progress().clear();
    const std::string text =
        str(format_count(chat_->questions()), " questions, ", format_count(chat_->tokens()), " of ",
            format_count(engine_.context_limit()), " tokens\n",
            last_ ? visible(format_report(*last_, engine_.describe(), args_.generate.max_tokens)) : std::string());
    std::fputs(text.c_str(), stderr);
  }

  void save(const std::string& path) {
    std::ofstream out(path, std::ios::trunc);
    out << chat_->messages_json() << std::flush;
    if (!out) throw_error(ExitCode::kStorage, path, "cannot be written");
    console_.progress().print_line(str("saved ", visible_name(path)));
  }

  const ChatArgs& args_;
  Console console_;
  Engine engine_;
  std::optional<LineEditor> editor_;  // none: the questions come through a pipe
  StreamLines lines_;
  std::optional<Chat> chat_;
  std::optional<GenerateResult> last_;
  bool interrupted_ = false;  // by the last key: a second Ctrl-C ends the chat
};

}  // namespace

ExitCode run_command(const ChatArgs& args) { return ChatProgram(args).run(); }

}  // namespace headrace
