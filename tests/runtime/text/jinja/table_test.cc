// Every filter, test and method on values of every type, against jinja2 (tests/data/jinja/table.json, by
// make_table.py): the same text, or an error where jinja2 has one.
#include <gtest/gtest.h>

#include <fstream>
#include <optional>

#include "cache/base.h"
#include "runtime/text/jinja/template.h"

namespace headrace::jinja {
namespace {

std::optional<std::string> text_of(const std::string& expression) {
  try {
    return Template("{{ " + expression + " }}", "test").render({}).bytes();
  } catch (const Error&) {
    return std::nullopt;
  }
}

TEST(JinjaTable, EqualsJinja2OnEveryType) {
  std::ifstream in(HEADRACE_TEST_DATA "/jinja/table.json");
  const auto rows = nlohmann::json::parse(in);
  ASSERT_GT(rows.size(), 3000u);
  for (const auto& row : rows) {
    const auto expression = row.at(0).get<std::string>();
    const auto text = text_of(expression);
    const auto expected = row.at(1).is_null() ? std::nullopt : std::optional(row.at(1).get<std::string>());
    EXPECT_EQ(text, expected) << expression << ": " << text.value_or("(error)")
                              << ", jinja2: " << expected.value_or("(error)");
  }
}

}  // namespace
}  // namespace headrace::jinja
