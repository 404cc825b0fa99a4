// No filter, test, function, method or operator takes long or much memory, whatever it is given: it ends with a result
// or at the limit of steps.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <span>

#include "cache/base.h"
#include "runtime/text/jinja/template.h"
#include "tests/support/sanitized.h"

namespace headrace::jinja {
namespace {

// Long texts, tuples that share their members 90 deep, long lists.
const char* const kHostile[] = {"{% set v = 'a' * 400000 %}{% set w = 'a' * 200000 ~ 'b' %}",
                                "{% set v = 'a b\n' * 50000 %}{% set w = ' ' %}",
                                "{% set v = 'a' * 20000 %}{% set w = 'b' * 20000 %}",
                                "{% set n = namespace(s=(1,), t=(1,)) %}{% for a in range(90) %}{% set n.s = (n.s, "
                                "n.s) %}{% set n.t = (n.t, n.t) %}"
                                "{% endfor %}{% set v = n.s %}{% set w = n.t %}",
                                "{% set n = namespace(s=(1,), t=(1,)) %}{% for a in range(90) %}{% set n.s = (n.s, "
                                "n.s) %}{% set n.t = (n.t, n.t) %}"
                                "{% endfor %}{% set v = [n.s, n.t] %}{% set w = n.t %}",
                                "{% set v = range(20000) | list %}{% set w = range(19999, 0, -1) | list %}",
                                "{% set v = ['a' * 20000] * 2000 %}{% set w = 'a' * 20000 %}"};

std::span<const char* const> hostile() {  // a sanitizer needs each built-in once
  return std::span(kHostile).first(headrace::testing::kSanitized ? 1 : std::size(kHostile));
}

void expect_bounded(const std::string& setup, const std::string& expression) {
  const auto start = std::chrono::steady_clock::now();
  try {
    Template(setup + "{% set x = " + expression + " %}", "test").render({}, {.steps = 2'000'000});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput) << expression;
  }
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(seconds, 10) << expression << " after " << setup.substr(0, 40);
}

// The call of each row of the table (tests/data/jinja/table.json) with the hostile value in place of 'aB c', so that a
// built-in that gets a row there is here, too.
TEST(JinjaBounds, EveryBuiltInEnds) {
  std::ifstream in(HEADRACE_TEST_DATA "/jinja/table.json");
  const std::string value = "'aB c'";
  size_t calls = 0;
  for (const auto& row : nlohmann::json::parse(in)) {
    const auto expression = row.at(0).get<std::string>();
    const bool in_brackets = expression.starts_with("(" + value + ")");
    if (!in_brackets && !expression.starts_with(value)) continue;
    const std::string rest = expression.substr(value.size() + (in_brackets ? 2 : 0));
    ++calls;
    for (const char* setup : hostile()) expect_bounded(setup, "v" + rest);
  }
  EXPECT_GT(calls, 150u);
}

TEST(JinjaBounds, EveryArgumentIsCounted) {
  for (const char* expression : {"v.find(w)",
                                 "v.rfind(w)",
                                 "v.index(w)",
                                 "v.rindex(w)",
                                 "v.count(w)",
                                 "v.split(w)",
                                 "v.rsplit(w)",
                                 "v.replace(w, v)",
                                 "v.replace('', w)",
                                 "v | replace(w, v)",
                                 "v.partition(w)",
                                 "v.rpartition(w)",
                                 "w in v",
                                 "v in [w]",
                                 "v == w",
                                 "v < w",
                                 "v is sameas w",
                                 "v is eq(w)",
                                 "[v, w] | unique | list",
                                 "[v, w] | sort",
                                 "[v, w] | max",
                                 "{v: 1}[w]",
                                 "{v: 1, w: 2}",
                                 "v ~ w",
                                 "v + w",
                                 "v * 1000000",
                                 "v | join(w)",
                                 "w.join(v)",
                                 "v.strip(w)",
                                 "v | indent(w)",
                                 "v | indent(1000)",
                                 "range(100000) | list | tojson(separators=(v, w))",
                                 "v | tojson(indent=100)",
                                 "'%s' % v",
                                 "'{}{}'.format(v, w)",
                                 "v.format(w)",
                                 "v % w",
                                 "v.zfill(1000000000000)",
                                 "v | batch(1) | list",
                                 "v | batch(1000000, w) | list",
                                 "v | groupby(w) | list",
                                 "v | map('replace', 'a', w) | list",
                                 "v | map(attribute=w) | list",
                                 "dict(v)",
                                 "v | sum(start=w)",
                                 "v.startswith(w)",
                                 "v.removeprefix(w)",
                                 "v[::-1]",
                                 "v | reverse",
                                 "v | list",
                                 "v | dictsort",
                                 "v | wordcount",
                                 "v | title",
                                 "v.splitlines()",
                                 "strftime_now(v)",
                                 "raise_exception(v)",
                                 "v | select('in', w) | list",
                                 "v | reject('eq', w) | list",
                                 "v | default(w)",
                                 "v | string | escape",
                                 "v.index(w)"}) {
    for (const char* setup : hostile()) expect_bounded(setup, expression);
  }
}

}  // namespace
}  // namespace headrace::jinja
