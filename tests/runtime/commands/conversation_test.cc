// The conversation of headrace chat: its prompts are the template's text, begin with the ids that the cache has, and an
// error leaves it as it was.
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "runtime/commands/chat.h"
#include "runtime/text/chat_render.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/refusal.h"
#include "tests/support/stops_at.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using Kind = ChatLine::Kind;

TEST(ChatLines, AreQuestionsOrCommands) {
  const auto parsed = [](std::string_view line) { return parse_chat_line(line); };
  EXPECT_EQ(parsed("  why?\r\n").text, "why?");
  EXPECT_EQ(parsed("why?").kind, Kind::kQuestion);
  EXPECT_EQ(parsed(" /etc is a folder").kind, Kind::kQuestion);
  EXPECT_EQ(parsed(" \t").kind, Kind::kEmpty);
  EXPECT_EQ(parsed("").kind, Kind::kEmpty);
  EXPECT_EQ(parsed("/new").kind, Kind::kNew);
  EXPECT_EQ(parsed("/stats ").kind, Kind::kStats);
  EXPECT_EQ(parsed("/help").kind, Kind::kHelp);
  EXPECT_EQ(parsed("/quit\n").kind, Kind::kQuit);
  EXPECT_EQ(parsed("/save  my file.json ").text, "my file.json");
  EXPECT_EQ(parsed("/save").kind, Kind::kWrong);
  EXPECT_EQ(parsed("/read  my notes.txt ").text, "my notes.txt");
  EXPECT_EQ(parsed("/read  my notes.txt ").kind, Kind::kRead);
  EXPECT_EQ(parsed("/read").text, "/read needs a file name: /read FILE");
  EXPECT_EQ(parsed("/new start").text, "/new takes no argument, but got 'start'");
  EXPECT_NE(parsed("/etc is a folder").text.find("'/etc' is not a command"), std::string::npos);
}

TEST(ChatLines, OneMessageMayHaveSeveral) {
  ChatInput input;
  EXPECT_TRUE(input.add("why?"));
  EXPECT_EQ(input.take().text, "why?");
  // A backslash at the end continues a line.
  EXPECT_FALSE(input.add("first\\"));
  EXPECT_TRUE(input.begun());
  EXPECT_FALSE(input.add("\\"));
  EXPECT_TRUE(input.add("third"));
  EXPECT_EQ(input.take().text, "first\n\nthird");
  EXPECT_FALSE(input.begun());
  EXPECT_FALSE(input.add("/read\\"));
  EXPECT_TRUE(input.add("a.txt"));
  EXPECT_EQ(input.take().kind, Kind::kRead);
  // Between quotes everything is the question, commands and empty lines, too.
  EXPECT_FALSE(input.add("  \"\"\"/new\r"));
  EXPECT_FALSE(input.add(""));
  EXPECT_FALSE(input.add("a \"\" b\\"));
  EXPECT_TRUE(input.add("end\"\"\" "));
  const ChatLine quoted = input.take();
  EXPECT_EQ(quoted.kind, Kind::kQuestion);
  EXPECT_EQ(quoted.text, "/new\r\n\na \"\" b\\\nend");
  EXPECT_TRUE(input.add("\"\"\"on one line\"\"\""));
  EXPECT_EQ(input.take().text, "on one line");
  EXPECT_TRUE(input.add("\"\"\"\"\"\""));
  EXPECT_EQ(input.take().kind, Kind::kEmpty);
  // What has not ended can be taken or dropped.
  EXPECT_FALSE(input.add("\"\"\"open"));
  EXPECT_EQ(input.take().text, "open");
  EXPECT_FALSE(input.add("\"\"\"open"));
  input.drop();
  EXPECT_TRUE(input.add("/help"));
  EXPECT_EQ(input.take().kind, Kind::kHelp);
}

constexpr const char* kTurns =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
// Earlier answers lose what precedes their last "e", as a template drops thinking.
constexpr const char* kShortened =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{{ m['content'].split('e')[-1] if m['role'] == 'assistant' else m['content'] }}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\\n<think></think>' }}";

class ChatTest : public ::testing::Test {
 protected:
  void SetUp() override { write_tiny_model(model_); }
  EngineOptions options(const char* chat_template = kTurns, int64_t context = 2000) const {
    EngineOptions o;
    o.model = model_;
    o.device = {.choice = DeviceChoice::kCpu, .threads = 1};
    o.ctx_size = context;
    if (chat_template != nullptr) o.chat_template_file = folder_.write("template.jinja", chat_template);
    return o;
  }
  static ChatOptions about(const std::string& document) {
    ChatOptions o{.system = "Be brief.", .document = document};
    o.generate.max_tokens = 20;
    o.generate.ignore_eos = true;
    return o;
  }
  const std::string document_ = std::string(600, 'x') + " and the rest of it";

  const TemporaryFolder folder_;
  const std::string model_ = folder_ / "model";
};

int64_t said(const GenerateResult& result) { return static_cast<int64_t>(result.token_ids.size()); }

TEST_F(ChatTest, ComputesOnlyWhatIsNew) {
  Engine engine(options());
  Chat chat(engine, about(document_));
  const std::optional<GenerateResult> read = chat.read({});
  ASSERT_TRUE(read);
  EXPECT_TRUE(read->token_ids.empty());
  EXPECT_EQ(read->kept_tokens, 0);
  EXPECT_GT(read->prompt_tokens, 600);
  const GenerateResult first = chat.ask("why?", {});
  EXPECT_GT(first.kept_tokens, 600);
  EXPECT_EQ(chat.tokens(), first.prompt_tokens + said(first));
  std::string streamed;
  const GenerateResult second = chat.ask("and then?", {.on_text = [&](std::string_view text) { streamed += text; }});
  EXPECT_EQ(second.kept_tokens, first.prompt_tokens + said(first) - 1) << "all but the answer's last token";
  EXPECT_EQ(streamed, second.text);
  EXPECT_EQ(chat.questions(), 2);
  chat.restart();
  EXPECT_EQ(chat.questions(), 0);
  const GenerateResult anew = chat.ask("why?", {});
  EXPECT_EQ(anew.prompt_tokens, first.prompt_tokens);
  EXPECT_GT(anew.kept_tokens, 600);
  EXPECT_EQ(anew.token_ids, first.token_ids);
}

// The prompt is the generated ids, not those that the answer's text would be encoded to, and its text the template's.
TEST_F(ChatTest, KeepsTheIdsThatWereGenerated) {
  Engine engine(options());
  Chat chat(engine, about(""));
  EXPECT_FALSE(chat.read({}));
  const GenerateResult first = chat.ask("why?", {});
  const std::vector<int32_t> alone = engine.encode({.system = "Be brief.", .user = "why?"});
  EXPECT_EQ(first.prompt_tokens, static_cast<int64_t>(alone.size()));
  const GenerateResult second = chat.ask("and then?", {});
  const int64_t turn = static_cast<int64_t>(std::string("\nuser\nand then?\nassistant\n").size()) + 4;  // and marks
  EXPECT_EQ(second.prompt_tokens, first.prompt_tokens + said(first) + turn);
}

TEST_F(ChatTest, FollowsATemplateThatRendersHistoryInAnotherWay) {
  Engine engine(options(kShortened));
  Chat chat(engine, about(document_));
  const GenerateResult first = chat.ask("why?", {});
  const ChatMessages messages{
      .system = "Be brief.",
      .user = "and then?",
      .earlier = {{.assistant = false, .content = document_ + "\n\nwhy?"}, {.assistant = true, .content = first.text}}};
  const std::vector<int32_t> whole = engine.encode(messages);
  const GenerateResult second = chat.ask("and then?", {});
  EXPECT_EQ(second.prompt_tokens, static_cast<int64_t>(whole.size()));
  EXPECT_GT(second.kept_tokens, 600);
  EXPECT_LT(second.kept_tokens, first.prompt_tokens) << "the prompt had a block that the history has not";
}

TEST_F(ChatTest, AQuestionThatDoesNotFitLeavesTheConversation) {
  Engine engine(options(kTurns, 1000));
  Chat chat(engine, about(document_));
  const GenerateResult first = chat.ask("why?", {});
  const std::string error =
      testing_support::error_of(ExitCode::kBadInput, [&] { chat.ask(std::string(500, 'y'), {}); });
  EXPECT_NE(error.find("the context holds 1000"), std::string::npos) << error;
  EXPECT_NE(error.find("/new"), std::string::npos) << error;
  testing_support::error_of(ExitCode::kBadInput, [&] { chat.ask("\xff", {}); });
  EXPECT_EQ(chat.questions(), 1);
  EXPECT_EQ(chat.ask("and then?", {}).kept_tokens, first.prompt_tokens + said(first) - 1);
}

TEST_F(ChatTest, AnInterruptedAnswerIsPartOfIt) {
  Engine engine(options());
  Chat chat(engine, about(document_));
  chat.read({});
  std::atomic<bool> flag{true};
  const GenerateResult none = chat.ask("why?", {.interrupt = &flag});
  EXPECT_EQ(none.finish_reason, FinishReason::kInterrupted);
  EXPECT_EQ(chat.questions(), 0) << "it was not asked";
  flag = false;
  testing::StopsAt progress(3, &flag);
  const GenerateResult part = chat.ask("why?", {.interrupt = &flag, .progress = &progress});
  EXPECT_EQ(part.finish_reason, FinishReason::kInterrupted);
  EXPECT_GT(part.kept_tokens, 600);
  ASSERT_GT(said(part), 2);
  EXPECT_EQ(chat.ask("and then?", {}).kept_tokens, part.prompt_tokens + said(part) - 1);
  EXPECT_EQ(chat.questions(), 2);
}

TEST_F(ChatTest, IsSavedAsMessages) {
  Engine engine(options());
  Chat chat(engine, about("A document."));
  const GenerateResult first = chat.ask("why?", {});
  chat.ask("and then?", {});
  const nlohmann::ordered_json messages = parse_chat_messages(chat.messages_json(), "saved");
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0]["content"], "Be brief.");
  EXPECT_EQ(messages[1]["content"], "A document.\n\nwhy?");
  EXPECT_EQ(messages[2]["role"], "assistant");
  EXPECT_EQ(messages[2]["content"], first.text);
  EXPECT_EQ(messages[3]["content"], "and then?");
}

TEST_F(ChatTest, NeedsATemplate) {
  Engine engine(options(nullptr));
  const std::string error = testing_support::error_of(ExitCode::kUsage, [&] { Chat(engine, about("")); });
  EXPECT_NE(error.find("--chat-template-file"), std::string::npos) << error;
}

}  // namespace
}  // namespace headrace
