// The subjects of the published JSON-Schema-Test-Suite that the grammar has, as cases of our own:
// tests/data/json_schema.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/runtime/grammar/accepts.h"
#include "tests/support/json_schema.h"

namespace headrace {
namespace {

using testing_support::JsonValidator;
using testing_support::SchemaJson;

SchemaJson published_cases() {
  std::ifstream in(HEADRACE_TEST_DATA "/json_schema/cases.json");
  return SchemaJson::parse(in);
}

// The grammar has the answers. It has neither what is invalid nor the other valid texts, which it leaves out.
TEST(PublishedCases, AreThoseOfTheGrammar) {
  const SchemaJson cases = published_cases();
  ASSERT_GE(cases.size(), 90u);
  for (const SchemaJson& one : cases) {
    SCOPED_TRACE(one["about"].get<std::string>());
    const auto grammar = schema_grammar(one["schema"].dump(), "schema.json");
    for (const SchemaJson& text : one["answers"])
      EXPECT_TRUE(testing::accepts(*grammar, text.get<std::string>())) << text;
    for (const char* const key : {"other", "invalid"}) {
      for (const SchemaJson& text : one[key]) EXPECT_FALSE(testing::accepts(*grammar, text.get<std::string>())) << text;
    }
  }
}

// So the validator by which random answers are judged can be trusted. It knows no formats.
TEST(PublishedCases, AreThoseOfTheValidator) {
  for (const SchemaJson& one : published_cases()) {
    SCOPED_TRACE(one["about"].get<std::string>());
    const JsonValidator validator(one["schema"]);
    const auto valid = [&](const SchemaJson& text) {
      return validator.valid(SchemaJson::parse(text.get<std::string>()));
    };
    for (const char* const key : {"answers", "other"}) {
      for (const SchemaJson& text : one[key]) EXPECT_TRUE(valid(text)) << text;
    }
    if (one["schema"].is_object() && one["schema"].contains("format")) continue;
    for (const SchemaJson& text : one["invalid"]) EXPECT_FALSE(valid(text)) << text;
  }
}

}  // namespace
}  // namespace headrace
