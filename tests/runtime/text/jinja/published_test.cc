// Templates as published with their models, against what jinja2 makes of them. HEADRACE_TEST_TEMPLATES names the
// folder: NAME.jinja, and rendered.json with the cases, the variables and the texts.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "cache/base.h"
#include "runtime/text/jinja/template.h"

namespace headrace::jinja {
namespace {

using Json = nlohmann::ordered_json;

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// What is marked as a message's must come from one; the rest from the template.
void check_origins(const Text& text, const std::string& messages) {
  for (const Text::Run& run : text.runs()) {
    EXPECT_TRUE(run.origin == Origin::kMessage || run.bytes.find("<|short|>") == std::string_view::npos) << run.bytes;
    if (run.origin != Origin::kMessage) continue;
    const std::string quoted = Json(std::string(run.bytes)).dump();
    EXPECT_NE(messages.find(quoted.substr(1, quoted.size() - 2)), std::string::npos) << run.bytes;
  }
}

TEST(PublishedTemplates, RenderAsJinja2Does) {
  const char* const folder = std::getenv("HEADRACE_TEST_TEMPLATES");
  if (folder == nullptr) GTEST_SKIP() << "HEADRACE_TEST_TEMPLATES names no folder";
  const Json all = Json::parse(read(std::string(folder) + "/rendered.json"));
  const std::string suffix = " + generation prompt";
  size_t cases = 0;
  for (const auto& [name, rendered] : all.at("rendered").items()) {
    const Template chat(read(std::string(folder) + "/" + name + ".jinja"), name);
    for (const auto& [title, want] : rendered.items()) {
      SCOPED_TRACE(name + ", " + title);
      const bool generation = title.ends_with(suffix);
      const Json& messages = all.at("cases").at(generation ? title.substr(0, title.size() - suffix.size()) : title);
      Variables variables = {{"messages", from_json(messages, Origin::kMessage, "messages")},
                             {"add_generation_prompt", generation}};
      for (const char* key : {"bos_token", "eos_token", "unk_token", "enable_thinking"})
        variables.emplace_back(key, from_json(all.at(key), Origin::kTemplate, "rendered.json"));
      const auto clock = [&](const std::string&) { return all.at("strftime_now").get<std::string>(); };
      try {
        const Text text = chat.render(variables, {}, clock);
        EXPECT_EQ(text.bytes(), want.get<std::string>());
        check_origins(text, messages.dump());
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
      ++cases;
    }
  }
  EXPECT_GE(cases, 41u * 8u);
}

}  // namespace
}  // namespace headrace::jinja
