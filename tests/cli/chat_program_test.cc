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
  EXPECT_NE(finished.err.find("'/nwe' is no command"), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("/nowhere/at/all: cannot be written"), std::string::npos) << finished.err;
  const nlohmann::json messages = nlohmann::json::parse(folder_->read("saved.json"));
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_NE(messages[0]["content"].get<std::string>().find("\n\nwhy?"), std::string::npos);
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
  ASSERT_TRUE(program.read_next("Ctrl-C again ends the chat") && program.read_next("> "));
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
