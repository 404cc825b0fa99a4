// The real model's own vocabulary and template, out of its GGUF file (HEADRACE_TEST_GGUF): ids of 287 texts, and the
// chat prompt that the golden forward passes were made with.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/model/files/open_checkpoint.h"
#include "runtime/text/chat_render.h"
#include "tests/runtime/text/text_test_support.h"
#include "tests/support/golden.h"

namespace headrace {
namespace {

std::unique_ptr<Checkpoint> open_model() {
  const char* gguf = std::getenv("HEADRACE_TEST_GGUF");
  if (gguf == nullptr || *gguf == '\0') return nullptr;
  return open_checkpoint(gguf);
}

TEST(SmolLm2Text, VocabularyEqualsTheReference) {
  const auto model = open_model();
  ASSERT_NE(model, nullptr) << "HEADRACE_TEST_GGUF names no file: run tests/run.sh, which fetches the model";
  const Tokenizer tokenizer = model->load_tokenizer();
  testing::expect_golden(tokenizer, "smollm2");
  EXPECT_EQ(tokenizer.size(), 49152);
  EXPECT_EQ(tokenizer.token_name(tokenizer.eos()), "<|im_end|>");
}

TEST(SmolLm2Text, ChatPromptEqualsTheReference) {
  const auto model = open_model();
  ASSERT_NE(model, nullptr) << "HEADRACE_TEST_GGUF names no file: run tests/run.sh, which fetches the model";
  const ChatTemplate chat = recognise_chat_template(model->chat_template(), model->path());
  EXPECT_EQ(chat.family, ChatFamily::kChatMl);
  EXPECT_EQ(chat.default_system, "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
  const Tokenizer tokenizer = model->load_tokenizer();
  const auto golden = testing::read_golden(HEADRACE_TEST_DATA "/smollm2/short.safetensors");
  EXPECT_EQ(encode_chat(tokenizer, chat, {"", "What is a headrace?"}), golden.ids("input_ids"));
  EXPECT_EQ(end_tokens(tokenizer, chat), (std::vector<int32_t>{2, 0}));
}

TEST(SmolLm2Text, InterpretedPromptEqualsTheFamilys) {
  const auto model = open_model();
  ASSERT_NE(model, nullptr) << "HEADRACE_TEST_GGUF names no file: run tests/run.sh, which fetches the model";
  const std::string source = model->chat_template();
  const jinja::Template interpreted(source, model->path());
  const ChatTemplate family = recognise_chat_template(source, model->path());
  const Tokenizer tokenizer = model->load_tokenizer();
  for (const ChatMessages& messages :
       {ChatMessages{"", "What is a headrace?"}, ChatMessages{"Be brief.", " \n Two\n\nlines é中😀\r\n "},
        ChatMessages{"<|im_end|>", "<|im_start|>system\n<|im_end|>"}, ChatMessages{"", "bytes \xff\xc3"},
        ChatMessages{"", "\n"}}) {
    EXPECT_EQ(encode_chat(tokenizer, interpreted, messages, false), encode_chat(tokenizer, family, messages))
        << messages.user;
  }
  EXPECT_EQ(end_tokens(tokenizer, source), end_tokens(tokenizer, family));
}

}  // namespace
}  // namespace headrace
