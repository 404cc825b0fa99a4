// headrace chat as a user runs it: on a pipe, and on a terminal with Ctrl-C.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "tests/cli/program_fixture.h"

namespace headrace {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

class ChatProgram : public ProgramTest {
 protected:
  void SetUp() override {
    document_ = folder_->write("document.txt", std::string(400, 'x') + ".");
    template_ = folder_->write("template.jinja", kTemplate);
  }
  std::vector<std::string> flags(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = {document_, "-c", "4000", "--chat-template-file", template_};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> args = {"chat", "-m", model_, "-t", "1"};
    const std::vector<std::string> rest = flags(more);
    args.insert(args.end(), rest.begin(), rest.end());
    return args;
  }
  std::string document_, template_;
};

TEST_F(ChatProgram, AnswersTheLinesOfAPipe) {
  const Finished finished =
      run("chat", flags({"--json"}), {.input = "why?\n\n  and then? \n/stats\n/new\nwhy?\n/quit\nnever asked\n"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::vector<nlohmann::json> answers = json_lines(finished.out);
  ASSERT_EQ(answers.size(), 3u) << finished.out;
  EXPECT_GT(answers[0]["kept_tokens"], 400);
  EXPECT_EQ(answers[1]["kept_tokens"], answers[0]["prompt_tokens"].get<int>() + 11);
  EXPECT_EQ(answers[2]["text"], answers[0]["text"]);
  EXPECT_NE(finished.err.find("2 questions, "), std::string::npos) << finished.err;
  EXPECT_EQ(finished.out.find("> "), std::string::npos);
  EXPECT_EQ(finished.err.find("> "), std::string::npos);

  const Finished text = run("chat", flags({"-q"}), {.input = "why?\nand then?"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.err, "");
  EXPECT_EQ(text.out, answers[0]["text"].get<std::string>() + "\n" + answers[1]["text"].get<std::string>() + "\n");
}

TEST_F(ChatProgram, GoesOnAfterALineThatCannotBeAnswered) {
  const std::string saved = *folder_ / "saved.json";
  const Finished finished = run(
      "chat", flags({"-q"}),
      {.input = "why?\n" + std::string(5000, 'y') + "\n/nwe\n/save " + saved + "\n/save /nowhere/at/all\nand then?\n"});
  EXPECT_EQ(finished.exit_code, 5) << "of the last error";
  EXPECT_EQ(std::count(finished.out.begin(), finished.out.end(), '\n'), 2) << finished.out;
  EXPECT_NE(finished.err.find("the context holds 4000"), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("'/nwe' is not a command"), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("/nowhere/at/all: cannot be written"), std::string::npos) << finished.err;
  const nlohmann::json messages = nlohmann::json::parse(folder_->read("saved.json"));
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_NE(messages[0]["content"].get<std::string>().find("\n\nwhy?"), std::string::npos);
}

TEST_F(ChatProgram, ReadsMessagesOfSeveralLinesAndMoreDocuments) {
  const std::string more = folder_->write("more.txt", "Another document.");
  const auto answers = [&](const std::string& input) {
    return json_lines(run("chat", flags({"--json", "-q"}), {.input = input}).out);
  };
  const std::vector<nlohmann::json> joined = answers("why\\\nnot?\n\"\"\"\n/new\n\nis a line\n\"\"\"\n");
  ASSERT_EQ(joined.size(), 2u);
  EXPECT_EQ(joined[0]["token_ids"], answers("\"\"\"why\nnot?\"\"\"\n")[0]["token_ids"]);
  EXPECT_EQ(answers("\"\"\"never\nended").size(), 1u);
  // A document goes before the next question alone.
  const std::vector<nlohmann::json> read = answers("/read " + more + "\nwhy?\nand then?\n");
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0]["token_ids"], answers("\"\"\"Another document.\n\nwhy?\"\"\"\n")[0]["token_ids"]);
  EXPECT_LT(read[1]["prompt_tokens"].get<int>() - read[0]["prompt_tokens"].get<int>(), 80);
  const Finished missing = run("chat", flags(), {.input = "/read " + more + "x\nwhy?\n"});
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_NE(missing.err.find("more.txtx"), std::string::npos) << missing.err;
  EXPECT_NE(run("chat", flags(), {.input = "/read " + more + "\n"}).err.find("17 B of text, read before"),
            std::string::npos);
}

// As summarize does between documents; --quiet has the answers alone.
TEST_F(ChatProgram, SeparatesTheAnswersOnAPipe) {
  const std::string quiet = run("chat", flags({"-q"}), {.input = "why?\n"}).out;
  const Finished both = run("chat", flags(), {.input = "why?\n/stats\nwhy\\\nnot?\n"});
  EXPECT_TRUE(both.out.starts_with("==> why? <==\n" + quiet + "\n==> why ... <==\n")) << both.out;
}

TEST_F(ChatProgram, CutsOrSplitsADocumentThatIsTooLong) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "Paragraph " + std::to_string(i) + " has some words.\n\n";
  const std::string document = folder_->write("too-long.txt", text);
  const auto ask = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {document, "-c", "800", "--chat-template-file", template_, "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return run("chat", args, {.input = "why?\n"});
  };
  const Finished refused = ask({});
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.err.find("--long split"), std::string::npos) << refused.err;
  for (const std::vector<std::string>& how : {std::vector<std::string>{"--truncate", "middle"}, {"--long", "split"}}) {
    const Finished finished = ask(how);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    EXPECT_LE(nlohmann::json::parse(finished.out)["prompt_tokens"], 800 - 12) << finished.out;
    EXPECT_EQ(finished.err.find(": part 2 of ") != std::string::npos, how[0] == "--long") << finished.err;
  }
  EXPECT_EQ(ask({"--long", "split", "--truncate", "middle"}).exit_code, 2);
}

TEST_F(ChatProgram, ALineWithoutAnEndIsAnError) {
  std::string command = "exec '" HEADRACE_PROGRAM "'";
  for (const std::string& word : this->command({"-q"})) command += " '" + word + "'";
  command += " < /dev/zero 2> '" + *folder_ / "zero.err'";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 3);
  EXPECT_NE(folder_->read("zero.err").find("standard input: has a line of more than 268435456 bytes"),
            std::string::npos)
      << folder_->read("zero.err");
}

TEST_F(ChatProgram, RefusesWhatItCannotUse) {
  EXPECT_EQ(run("chat", {"-"}, {.input = "x"}).exit_code, 2);
  EXPECT_EQ(run("chat", {document_, "-c", "4000"}, {.input = "x"}).exit_code, 2) << "no template";
  EXPECT_EQ(run("chat", {*folder_ / "absent", "-c", "4000"}, {.input = "x"}).exit_code, 3);
  EXPECT_EQ(run("chat", flags({"-c", "300"}), {.input = "x"}).exit_code, 3) << "the document does not fit";
}

TEST_F(ChatProgram, CtrlCStopsAnAnswerAndASecondOneTheChat) {
  SKIP_WITHOUT_A_TERMINAL();
  Program program(command({"--ignore-eos", "-n", "3000"}), Program::Streams::kTerminal);
  ASSERT_TRUE(program.read_until("> "));
  program.type("why?\n");
  ASSERT_TRUE(program.read_until("why?"));
  ASSERT_TRUE(program.read_bytes(1500));  // some of the answer
  program.type("\x03");
  // Each with the prompt behind it: before that Ctrl-C is no key.
  ASSERT_TRUE(program.read_next("; interrupted; ") && program.read_next("> "));
  program.type("/stats\n");
  ASSERT_TRUE(program.read_next("1 questions, ") && program.read_next("> "));
  // Ctrl-P brings the line before, which shows that keys are read: right after the prompt Ctrl-C may still be a signal.
  program.type("\x10");
  ASSERT_TRUE(program.read_next("/stats"));
  program.type("\x03");
  ASSERT_TRUE(program.read_next("press Ctrl-C again to end the chat") && program.read_next("> "));
  program.type("/save " + (*folder_ / "kept.json") + "\n");
  ASSERT_TRUE(program.read_next("saved ") && program.read_next("> "));
  program.type("\x10");
  ASSERT_TRUE(program.read_next("/save"));
  program.type("\x03\x03");
  const Finished finished = program.wait();
  EXPECT_EQ(finished.exit_code, 130) << finished.out;
  EXPECT_EQ(nlohmann::json::parse(folder_->read("kept.json")).size(), 2u);
}

TEST_F(ChatProgram, EndsAtTheEndOfInput) {
  SKIP_WITHOUT_A_TERMINAL();
  Program program(command({"-n", "5"}), Program::Streams::kTerminal);
  ASSERT_TRUE(program.read_until("> "));
  program.type("wrong\x7f\x7f\x7f\x7f\x7f/elp\x01\x06h\n");  // five times back; to the beginning, one forward: "/help"
  ASSERT_TRUE(program.read_until("the documents stay"));
  program.type("\x10s\x7f\n");  // the line before
  program.type("/stats\n");
  ASSERT_TRUE(program.read_until("0 questions, "));
  program.type("\x04");
  const Finished finished = program.wait();
  EXPECT_EQ(finished.exit_code, 0);
  const size_t help = finished.out.find("the documents stay");
  EXPECT_NE(finished.out.find("the documents stay", help + 1), std::string::npos) << finished.out;
}

// A paste is one message however many lines it has, and Tab completes commands and the names of files.
TEST_F(ChatProgram, PastesAndCompletesOnATerminal) {
  SKIP_WITHOUT_A_TERMINAL();
  folder_->write("only-file-here/some-document.txt", "Another document.");
  Program program(command({"-n", "5", "--ignore-eos"}), Program::Streams::kTerminal);
  ASSERT_TRUE(program.read_until("\033[?2004h") && program.read_next("> "));
  program.type("\033[200~one\r/quit\rthree\033[201~\n");
  ASSERT_TRUE(program.read_next("tokens]") && program.read_next("> "));
  program.type("/st\t\n");
  ASSERT_TRUE(program.read_next("1 questions, ") && program.read_next("> "));
  program.type("/r\t" + (*folder_ / "only-file-here/som") + "\t\n");
  ASSERT_TRUE(program.read_next("17 B of text, read before the next question") && program.read_next("> "));
  program.type("first\\\n");
  ASSERT_TRUE(program.read_next("... "));
  program.type("second\n");
  ASSERT_TRUE(program.read_next("tokens]") && program.read_next("> "));
  program.type("/save " + (*folder_ / "pasted.json") + "\n");
  ASSERT_TRUE(program.read_next("saved ") && program.read_next("> "));
  program.type("\x04");
  EXPECT_EQ(program.wait().exit_code, 0);
  const nlohmann::json messages = nlohmann::json::parse(folder_->read("pasted.json"));
  ASSERT_EQ(messages.size(), 4u) << messages.dump(1);
  EXPECT_TRUE(messages[0]["content"].get<std::string>().ends_with("\n\none\n/quit\nthree")) << messages[0];
  EXPECT_EQ(messages[2]["content"], "Another document.\n\nfirst\nsecond");
}

// While documents are read and answers are computed, the terminal is in canonical mode.
TEST_F(ChatProgram, CtrlDBeforeThePromptEndsTheChat) {
  SKIP_WITHOUT_A_TERMINAL();
  Program program(command({"-n", "5"}), Program::Streams::kTerminal);
  program.type("\x04");
  const Finished finished = program.wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.out;
}

}  // namespace
}  // namespace headrace
