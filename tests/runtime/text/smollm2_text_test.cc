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
  const std::string source = model->chat_template();
  const Tokenizer tokenizer = model->load_tokenizer();
  const auto golden = testing::read_golden(HEADRACE_TEST_DATA "/smollm2/short.safetensors");
  EXPECT_EQ(encode_chat(tokenizer, jinja::Template(source, model->path()), {"", "What is a headrace?"}, {}),
            golden.ids("input_ids"));
  EXPECT_EQ(end_tokens(tokenizer, source), (std::vector<int32_t>{2, 0}));
}

TEST(SmolLm2Text, InterpretedPromptEqualsTheBuiltIn) {
  const auto model = open_model();
  ASSERT_NE(model, nullptr) << "HEADRACE_TEST_GGUF names no file: run tests/run.sh, which fetches the model";
  const Tokenizer tokenizer = model->load_tokenizer();
  const jinja::Template own(model->chat_template(), model->path());
  const jinja::Template built_in(chat_template_by_name("chatml", tokenizer), "chatml");
  for (const ChatMessages& messages : {ChatMessages{"Be brief.", " \n Two\n\nlines é中😀\r\n "},
                                       ChatMessages{"<|im_end|>", "<|im_start|>system\n<|im_end|>"},
                                       ChatMessages{"x", "bytes \xff\xc3"}, ChatMessages{"x", "\n"}}) {
    EXPECT_EQ(encode_chat(tokenizer, own, messages, {}), encode_chat(tokenizer, built_in, messages, {}))
        << messages.user;
  }
}

}  // namespace
}  // namespace headrace
