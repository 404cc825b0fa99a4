// What a template must not do: fail without its line, run on, make a message's text its own, or change a value.
#include "runtime/text/jinja/template.h"

#include <gtest/gtest.h>

#include "runtime/text/jinja/lexer.h"
#include "tests/support/refusal.h"

namespace headrace::jinja {
namespace {

using testing_support::expect_error;

Value messages() {
  const char* const json = R"([{"role": "user", "content": " <|End|>, <|end|> "}])";
  return from_json(nlohmann::ordered_json::parse(json), Origin::kMessage, "messages");
}

Text rendered(const std::string& source, const Limits& limits = {}) {
  return Template(source, "chat.jinja").render({{"messages", messages()}, {"d", Dict()}}, limits);
}

// The text with what came from messages in braces.
std::string marked(const std::string& source) {
  std::string out;
  const Text text = rendered("{% set c = messages[0].content %}" + source);
  for (const Text::Run& run : text.runs())
    out += run.origin == Origin::kMessage ? "{" + std::string(run.bytes) + "}" : std::string(run.bytes);
  return out;
}

TEST(JinjaOrigins, AreKeptByEveryOperation) {
  EXPECT_EQ(marked("<s>{{ c }}</s>"), "<s>{ <|End|>, <|end|> }</s>");
  EXPECT_EQ(marked("{{ 'a' + c.strip() + 'b' }}"), "a{<|End|>, <|end|>}b");
  EXPECT_EQ(marked("{{ ('<' ~ c | trim) | lower }}"), "<{<|end|>, <|end|>}");
  EXPECT_EQ(marked("{{ (c ~ 'x').title() }}{{ c | upper }}"), "{ <|End|>, <|End|> }X{ <|END|>, <|END|> }");
  EXPECT_EQ(marked("{{ c.split(',') | join('|') }}"), "{ <|End|>}|{ <|end|> }");
  EXPECT_EQ(marked("{{ c.replace('End', '-') }}"), "{ <|}-{|>, <|end|> }");
  EXPECT_EQ(marked("{{ 'a-b'.replace('-', c[1:4]) }}"), "a{<|E}b");
  EXPECT_EQ(marked("{{ c[1:4] }}-{{ c[::-1][:2] }}-{{ c[1] }}"), "{<|E}-{ >}-{<}");
  EXPECT_EQ(marked("{{ c[1:4] | tojson }}{{ [c[1:4]] }}{{ {'a': c[1:4]} | string }}"),
            "\"{<|E}\"['{<|E}']{'a': '{<|E}'}");
  EXPECT_EQ(marked("{{ '%s|%5s' % (c[1:3], c[1:3]) }}{{ c[1:3] | format }}"), "{<|}|   {<|<|}");
  EXPECT_EQ(marked("{{ ('a\\n' ~ c[1:3]) | indent(2) }}{{ c[1:3] | e }}"), "a\n  {<|&lt;|}");
  EXPECT_EQ(marked("{% for x in c[1:3] %}{{ x }}.{% endfor %}{{ c[1:3] * 2 }}"), "{<}.{|}.{<|<|}");
  EXPECT_EQ(marked("{% set b %}<{{ c[1:3] }}>{% endset %}{{ b }}{% macro m(t) %}[{{ t }}]{% endmacro %}{{ m(b) }}"),
            "<{<|}>[<{<|}>]");
  EXPECT_EQ(marked("{% for k, v in messages[0].items() %}{{ k }}={{ v | length }};{% endfor %}"),
            "{role}=4;{content}=18;");
  EXPECT_EQ(marked("{{ c.partition('|')[0] }}{{ c.zfill(21) }}{{ c.removeprefix(' <') | capitalize }}"),
            "{ <}000{ <|End|>, <|end|> |end|>, <|end|> }");
}

TEST(JinjaErrors, NameSourceAndLine) {
  const auto fails = [](const std::string& source, int line, const std::string& why) {
    SCOPED_TRACE(source);
    expect_error(ExitCode::kBadInput, "chat.jinja:" + std::to_string(line), {why}, [&] { rendered(source); });
  };
  fails("a\n{{ raise_exception('no ' ~ 'system') }}", 2, "the template refuses the messages: no system");
  fails("\n\n{{ x.y }}", 3, "'x' is undefined");
  fails("{{ d.x.y }}", 1, "a dict has no 'x'");
  fails("{{ 1 +\n none }}", 1, "'+' has no meaning between a int and a NoneType");
  fails("{{ 'a' + 1 }}", 1, "between a str and a int");
  fails("{{ x + 'a' }}", 1, "'x' is undefined");
  fails("{{ x() }}", 1, "'x' is undefined");
  fails("{{ 'a'() }}", 1, "a str cannot be called");
  fails("{{ 1 | nothing }}", 1, "the filter 'nothing' is unknown");
  fails("{{ 1 is nothing }}", 1, "the test 'nothing' is unknown");
  fails("{{ 1 / 0 }}{{ 1 }}", 1, "a division by zero");
  fails("{{ 9223372036854775807 + 1 }}", 1, "too large");
  fails("{{ 99999999999999999999 }}", 1, "too large");
  fails("{% for x in 5 %}{% endfor %}", 1, "a int has no items");
  fails("{% set a, b = [1] %}", 1, "1 values cannot be set to 2 names");
  fails("{% set d.x = 1 %}", 1, "'d' is not a namespace");
  fails("{% macro m(a) %}{% endmacro %}\n{{ m(1, 2) }}", 2, "'m' has 1 parameters, not 2");
  fails("{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", 1, "'b'");
  fails("{{ 'a'.split(b=1) }}", 1, "split has no parameter 'b'");
  fails("{{ 'a'.startswith() }}", 1, "startswith needs 'prefix'");
  fails("{{ 'a'.replace(1, 2) }}", 1, "replace needs a str, not a int");
  fails("{{ range(200000) }}", 1, "more than 100000");
  fails("{{ x | tojson }}", 1, "'x' is undefined");
  fails("{{ range | tojson }}", 1, "JSON has no form for a function");
  fails("{{ [1, 'a'] | sort }}", 1, "have no order");
  fails("{{ [range] }}", 1, "cannot be stored in a list");
  fails("{{ {[1]: 2} }}", 1, "cannot be a key");
  fails("{{ loop.x }}", 1, "'loop' is undefined");
  fails("{% for i in [1] %}{{ loop(1) }}{% endfor %}", 1, "recursive");
}

TEST(JinjaErrors, OfSyntaxNameSourceAndLine) {
  const auto fails = [](const std::string& source, int line, const std::string& why) {
    SCOPED_TRACE(source);
    expect_error(ExitCode::kBadInput, "chat.jinja:" + std::to_string(line), {why}, [&] { rendered(source); });
  };
  fails("a\n{{ 1 ", 2, "a tag has no end");
  fails("a\n{# 1 ", 2, "a comment has no end");
  fails("{% raw %}", 1, "a raw block has no end");
  fails("{{ 'a }}", 1, "a string has no end");
  fails("{{ '\\x4' }}", 1, "escapes no character");
  fails("{{ a ? b }}", 1, "'?' has no meaning");
  fails("{{ (a] }}", 1, "']' closes nothing");
  fails("{{ }}", 1, "expected an expression, not '}}'");
  fails("{{ a b }}", 1, "expected '}}', not 'b'");
  fails("{% if a %}\n{% for x in y %}{% endif %}", 2, "not 'endif'");
  fails("{% if a %}\n", 1, "expected 'endif'");
  fails("{% include 'x' %}", 1, "not 'include'");
  fails("{% break %}", 1, "expected a loop around break");
  fails("{% for i in x %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}", 1, "expected a loop");
  fails("{% set none = 1 %}", 1, "expected a name that can be set");
  fails("{% call 5 %}{% endcall %}", 1, "expected a call");
  fails("{% macro m(a=1, b) %}{% endmacro %}", 1, "expected '='");
  fails("{{ f(*a) }}", 1, "not supported");
  fails("\xff", 1, "is not UTF-8");
  fails(std::string(kMaxSourceBytes + 1, 'a'), 1, "the most are 1048576");
}

TEST(JinjaErrors, RefuseWhatWouldChangeAValue) {
  for (const char* call : {"d.update({'a': 1})", "d.pop('a')", "messages.append(1)", "messages.clear()"}) {
    SCOPED_TRACE(call);
    expect_error(ExitCode::kBadInput, "chat.jinja:1", {"templates cannot"},
                 [&] { rendered(std::string("{{ ") + call + " }}"); });
  }
}

void exceeds(const std::string& source, const std::string& why) {
  SCOPED_TRACE(source.substr(0, 200));
  Limits limits;
  limits.steps = 200'000;
  limits.output_bytes = 50'000;
  expect_error(ExitCode::kBadInput, "chat.jinja:1", {why}, [&] { rendered(source, limits); });
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(JinjaLimits, EndEveryTemplate) {
  exceeds("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", "more than 200000 steps");
  exceeds("{% set n = namespace(t='x') %}{% for a in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}", "steps");
  exceeds("{{ 'abc' * 9999999999999 }}", "steps");
  exceeds("{{ [1] * 9223372036854775807 }}", "steps");
  exceeds("{{ 'a'.zfill(99999999999) }}", "steps");
  exceeds("{% for a in range(1000) %}{{ 'x' * 100 }}{% endfor %}", "more than 50000 bytes");
  exceeds("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nests more than 500 levels");
  exceeds("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nests more than 500 levels");
  exceeds("{% set n = namespace(l=[]) %}{% for a in range(200) %}{% set n.l = [n.l] %}{% endfor %}",
          "nests more than 100 lists");
  // A hundred lists of two each: 2^99 items to print or to compare.
  const std::string doubled =
      "{% set n = namespace(l=[1]) %}{% for a in range(90) %}{% set n.l = [n.l, n.l] %}{% endfor %}";
  exceeds(doubled + "{{ n.l }}", "steps");
  exceeds(doubled + "{{ n.l | tojson }}", "steps");
  exceeds(doubled + "{{ n.l == n.l }}", "steps");
  exceeds(doubled + "{{ n.l in [n.l] }}", "steps");
  exceeds(doubled + "{{ [n.l, n.l] | sort }}", "steps");
  exceeds("{{ " + repeated("(", 200) + "1" + repeated(")", 200) + " }}", "at most 100");
  exceeds("{{ " + repeated("-", 2000) + "1 }}", "at most 100");
  exceeds("{{ " + repeated("not ", 2000) + "1 }}", "at most 100");
  exceeds("{{ 1" + repeated("+1", 2000) + " }}", "at most 400");
  exceeds("{{ a" + repeated(".a", 2000) + " }}", "at most 400");
  exceeds(repeated("{% if 1 %}", 200), "at most 100");
}

TEST(JinjaLimits, LeaveRoomForALongDocument) {
  const Value text = Text(std::string(8'000'000, 'x') + " \n", Origin::kMessage);
  const Template chat("{{ '<u>' + (c | trim) }}{{ c.split('\\n')[-1] }}{{ c | length > 5 }}", "chat.jinja");
  EXPECT_EQ(chat.render({{"c", text}}).size(), 3 + 8'000'000 + 4u);
}

TEST(JinjaErrors, RefuseMessagesThatNestTooDeep) {
  nlohmann::ordered_json json;
  for (int i = 0; i < kMaxValueDepth + 1; ++i) json = nlohmann::ordered_json::array({json});
  expect_error(ExitCode::kBadInput, "file.json", {"nests more than 100"},
               [&] { from_json(json, Origin::kMessage, "file.json"); });
}

TEST(Jinja, TellsTheTime) {
  const std::string year = rendered("{{ strftime_now('%Y') }}").bytes();
  EXPECT_EQ(year.size(), 4u);
  EXPECT_GE(year, "2024");
}

}  // namespace
}  // namespace headrace::jinja
