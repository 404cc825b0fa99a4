// Small templates, against what jinja2 makes of them (tests/data/jinja/rendered.json, by make_jinja_golden.py).
#include <gtest/gtest.h>

#include <fstream>

#include "runtime/text/jinja/template.h"

namespace headrace::jinja {
namespace {

TEST(Jinja, EqualsJinja2) {
  std::ifstream in(HEADRACE_TEST_DATA "/jinja/rendered.json");
  const auto all = nlohmann::ordered_json::parse(in);
  Variables variables;
  for (const auto& [name, value] : all.at("variables").items())
    variables.emplace_back(name, from_json(value, Origin::kMessage, "rendered.json"));
  const auto clock = [](const std::string& format) { return "now in " + format; };
  ASSERT_GE(all.at("cases").size(), 40u);
  for (const auto& row : all.at("cases")) {
    const std::string source = row.at("template").get<std::string>();
    SCOPED_TRACE(source);
    EXPECT_EQ(Template(source, "test").render(variables, {}, clock).bytes(), row.at("text").get<std::string>());
  }
}

}  // namespace
}  // namespace headrace::jinja
