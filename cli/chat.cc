// headrace chat: documents, then questions and answers in turn, on a terminal or a pipe.
#include "runtime/commands/chat.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/line_editor.h"
#include "cli/print/format.h"
#include "cli/print/interrupt.h"
#include "cli/print/report.h"
#include "runtime/base/input_file.h"
#include "runtime/commands/long_document.h"
#include "runtime/commands/report.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

using Outcome = LineEditor::Outcome;

// `note`: what was skipped in folders; empty: nothing.
std::string read_documents(const ChatArgs& args, const Engine& engine, const Interrupt& interrupt, std::string* note) {
  const bool refuses = args.truncate == Truncate::kNone && !args.split;  // what is too long
  const DocumentLimit limit = refuses ? engine.document_limit() : DocumentLimit();
  std::string text;
  if (args.paths.empty()) return text;
  std::vector<std::string> skipped;
  for (const std::string& file : expand_documents(args.paths, {}, &skipped)) {
    text += (text.empty() ? "" : "\n\n") + document_text(file, {.limit = limit, .interrupt = interrupt.flag()});
    check_document_size(file, text.size(), limit);
  }
  *note = skipped_note(skipped);
  return text;
}

// The answers to the parts of the text itself.
std::string first_summaries(const std::vector<PartAnswer>& parts) {
  std::string text;
  for (const PartAnswer& part : parts) {
    if (part.level == 1) text += (text.empty() ? "" : "\n\n") + part.text;
  }
  return text;
}

// "why not ..." of a question of several lines.
std::string first_line_of(const std::string& question) {
  const size_t end = question.find('\n');
  return end == std::string::npos ? question : question.substr(0, end) + " ...";
}

class ChatProgram {
 public:
  explicit ChatProgram(const ChatArgs& args)
      : args_(args), console_(args.output, /*streams_text=*/true), engine_(console_.with_rates(args.engine)) {
    if (::isatty(STDIN_FILENO) == 0) return;
    editor_.emplace();
    editor_->complete({std::begin(kChatCommands), std::end(kChatCommands)});
  }

  ExitCode run() {
    console_.note_engine(engine_);
    if (!read()) return ExitCode::kInterrupted;
    if (editor_ && !args_.output.quiet) console_.progress().print_line("Ask a question, or /help.");
    ExitCode code = ExitCode::kDone;
    for (ChatLine line; next_message(&line, &code);) {
      if (line.kind == ChatLine::Kind::kQuit) break;
      if (obey(line, &code)) continue;
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
    std::string document = read_documents(args_, engine_, interrupt, &skipped);
    if (!skipped.empty() && !args_.output.quiet) console_.progress().print_line(skipped);
    chat_.emplace(engine_, ChatOptions{.system = args_.system,
                                       .document = fitting(std::move(document), interrupt),
                                       .generate = args_.generate});
    const std::optional<GenerateResult> result =
        chat_->read({.on_text = {}, .interrupt = interrupt.flag(), .progress = &console_.progress()});
    if (!result) return true;
    last_ = *result;
    console_.note_result(*result);
    return result->finish_reason != FinishReason::kInterrupted;
  }

  // The documents with what --truncate or --long does if they leave too little room for questions and answers.
  std::string fitting(std::string document, const Interrupt& interrupt) {
    if (document.empty() || (args_.truncate == Truncate::kNone && !args_.split)) return document;
    const int64_t room = engine_.context_limit() / 4;
    PromptRules rules{.instruction = "",
                      .truncate = args_.truncate,
                      .context_tokens = engine_.context_limit(),
                      .answer_tokens = room};
    const EncodePrompt encode = [this](std::string_view user) {
      return engine_.encode({.system = args_.system, .user = std::string(user)});
    };
    const std::string name = args_.paths.size() == 1 ? args_.paths.front() : "the documents";
    if (args_.truncate == Truncate::kMiddle) return document_prompt(name, document, rules, encode).text;
    if (static_cast<int64_t>(encode(document).size()) <= engine_.context_limit() - room) return document;
    rules.instruction = "\n\nSummarize the text above with all names, numbers and facts.";
    const GenerateResult result =
        answer_long(name, document, rules, encode, [&](const std::vector<int32_t>& ids, const PartLabel& part) {
          GenerateOptions run = args_.generate;
          run.max_tokens = std::min(run.max_tokens < 0 ? kSummaryTokens : run.max_tokens, room);
          run.interrupt = interrupt.flag();
          if (!part.last) {
            console_.progress().print_line(str(visible_name(name), ": part ", part.part, " of ", part.parts, ", ",
                                               format_count(static_cast<int64_t>(ids.size())), " tokens"));
          }
          return engine_.generate(ids, run, &console_.progress());
        });
    const std::string parts = first_summaries(result.parts);
    return static_cast<int64_t>(encode(parts).size()) <= engine_.context_limit() - room ? parts : result.text;
  }

  // False: there are no more.
  bool next_message(ChatLine* message, ExitCode* code) {
    for (std::string line; next_line(&line, code);) {
      if (!input_.add(line)) continue;
      *message = input_.take();
      return true;
    }
    if (!input_.begun() || interrupted_) return false;
    *message = input_.take();  // which the end of the input ends
    return true;
  }

  bool next_line(std::string* line, ExitCode* code) {
    if (!editor_) return lines_.next(line);
    for (;;) {
      const Outcome outcome = editor_->read(line, input_.begun() ? "... " : "> ");
      if (outcome == Outcome::kInterrupt) input_.drop();
      const bool second = std::exchange(interrupted_, outcome == Outcome::kInterrupt);
      if (outcome == Outcome::kLine) return true;
      if (outcome == Outcome::kEnd) return false;
      if (second) *code = ExitCode::kInterrupted;
      if (second) return false;
      console_.progress().print_line("press Ctrl-C again to end the chat");
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
          more_.clear();
          return true;
        case ChatLine::Kind::kStats:
          show_stats();
          return true;
        case ChatLine::Kind::kSave:
          save(line.text);
          return true;
        case ChatLine::Kind::kRead:
          read_more(line.text);
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
    if (!editor_ && !args_.output.quiet && !args_.output.json) {
      console_.print(str(asked_ > 0 ? "\n" : "", "==> ", visible_name(first_line_of(question)), " <==\n"));
    }
    ++asked_;
    const GenerateResult result =
        chat_->ask(more_.empty() ? question : more_ + "\n\n" + question,
                   {.on_text = console_.text_sink(engine_, engine_.encode({.system = {}, .user = "?"})),
                    .interrupt = interrupt.flag(),
                    .progress = &console_.progress()});
    if (args_.output.json) console_.print(result_json(result) + "\n");
    console_.end_text();
    if (args_.output.quiet) console_.note_cut(result, args_.generate);  // else the line below has it
    console_.note_result(result);
    last_ = result;
    if (!result.token_ids.empty()) more_.clear();
    console_.progress().print_line(str("[", format_chat_line(result), "; ", format_count(chat_->tokens()), " of ",
                                       format_count(engine_.context_limit()), " tokens]"));
    const bool cut = result.finish_reason == FinishReason::kInterrupted;
    interrupted_ = cut;
    return !cut || editor_;
  }

  void read_more(const std::string& path) {
    const Interrupt interrupt;
    const std::string text = document_text(path, {.limit = engine_.document_limit(), .interrupt = interrupt.flag()});
    more_ += (more_.empty() ? "" : "\n\n") + text;
    console_.progress().print_line(
        str(visible_name(path), ": ", format_bytes(text.size()), " of text, read before the next question"));
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
  ChatInput input_;
  std::string more_;  // of /read, for the next question
  int64_t asked_ = 0;
  std::optional<Chat> chat_;
  std::optional<GenerateResult> last_;
  bool interrupted_ = false;  // by the last key: a second Ctrl-C ends the chat
};

}  // namespace

ExitCode run_command(const ChatArgs& args) { return ChatProgram(args).run(); }

}  // namespace headrace
