#include "runtime/grammar/schema.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/grammar/accepts.h"
#include "tests/support/json_schema.h"
#include "tests/support/refusal.h"

namespace headrace {
namespace {

using testing_support::SchemaJson;

struct SchemaCase {
  std::string schema;
  std::vector<std::string> valid, invalid;
};

void check(const std::vector<SchemaCase>& cases) {
  for (const SchemaCase& c : cases) {
    const auto grammar = schema_grammar(c.schema, "schema.json");
    for (const std::string& text : c.valid) EXPECT_TRUE(testing::accepts(*grammar, text)) << c.schema << " of " << text;
    for (const std::string& text : c.invalid) {
      EXPECT_FALSE(testing::accepts(*grammar, text)) << c.schema << " of " << text;
    }
  }
}

// The subjects are those of JSON-Schema-Test-Suite (draft 2020-12), file by file, as far as the grammar has the
// keyword.

TEST(Schema, Type) {
  check(
      {{R"({"type": "integer"})", {"1", "-12", "0"}, {"1.1", "\"1\"", "{}", "[]", "true", "null", "01", "-", "1e3"}},
       {R"({"type": "number"})",
        {"1", "1.0", "-1.1", "0.5", "1e3", "2E-10", "-0"},
        {"\"1\"", "{}", "[]", "true", "null", ".5", "1.", "1e", "00", "+1"}},
       {R"({"type": "string"})", {"\"foo\"", "\"1\"", "\"\"", R"("a\n\u20ac\"")"}, {"1", "1.1", "{}", "[]", "null"}},
       {R"({"type": "object"})", {"{}", R"({"a": 1})", R"({"a":{"b":[]},"c":null})"}, {"1", "\"foo\"", "[]", "null"}},
       {R"({"type": "array"})", {"[]", "[1]", R"(["a", {}, [null]])"}, {"1", "\"foo\"", "{}", "null", "[1,]", "[,1]"}},
       {R"({"type": "boolean"})", {"true", "false"}, {"1", "0", "\"\"", "null", "[]"}},
       {R"({"type": "null"})", {"null"}, {"1", "0", "\"\"", "{}", "false"}},
       {R"({"type": ["integer", "string"]})", {"1", "\"foo\""}, {"1.1", "{}", "[]", "true", "null"}},
       {R"({"type": ["array", "object", "null"]})", {"[1,2,3]", R"({"foo": 123})", "null"}, {"123", "\"foo\""}}});
}

TEST(Schema, StringsAreThoseOfJson) {
  check({{R"({"type": "string"})",
          {"\"\xc3\xa4\"", "\"\xf0\x9f\x98\x80\"", R"("\ud7ff")", R"("\uFFFF")", R"("\/\b\f\n\r\t")", "\"\x7f\""},
          {"\"\x01\"", "\"\n\"", "\"\xff\"", "\"\xc3\"", R"("\ud800")", R"("\uDC00")", R"("\x")", R"("\u12")", "\"",
           "\"\xed\xa0\x80\"", "\"\xc0\x80\"", "\"a\"b\""}}});
}

TEST(Schema, EnumAndConst) {
  check(
      {{R"({"enum": [1, 2, 3]})", {"1", "3"}, {"4", "12", "\"1\""}},
       {R"({"enum": [6, "foo", [], true, {"foo": 12}]})",
        {"6", "\"foo\"", "[]", "true", R"({"foo":12})"},
        {"null", R"({"foo": false})", "[1]"}},
       {R"({"type": "string", "enum": ["a", 1, "b"]})", {"\"a\"", "\"b\""}, {"1", "\"c\""}},
       {R"({"enum": ["foo\nbar", "a\"b", "ä"]})", {R"("foo\nbar")", R"("a\"b")", "\"ä\""}, {R"("foobar")"}},
       {R"({"const": 2})", {"2"}, {"5", "\"a\"", "22"}},
       {R"({"const": {"foo": "bar", "baz": "bax"}})", {R"({"foo":"bar","baz":"bax"})"}, {R"({"foo":"bar"})", "[1, 2]"}},
       {R"({"const": null})", {"null"}, {"0"}},
       {R"({"const": false})", {"false"}, {"0", "[]"}},
       {R"({"const": "hello\u0000there"})", {R"("hello\u0000there")"}, {R"("hellothere")"}}});
}

TEST(Schema, BoundsOfIntegers) {
  check({{R"({"type": "integer", "minimum": 1, "maximum": 3})", {"1", "2", "3"}, {"0", "4", "-1", "10", "01"}},
         {R"({"type": "integer", "minimum": -2})", {"-2", "-1", "0", "7", "1234567"}, {"-3", "-10", "-0"}},
         {R"({"type": "integer", "maximum": 300})", {"300", "299", "-5000", "0"}, {"301", "1000"}},
         {R"({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 100})", {"10", "99"}, {"9", "100", "1"}},
         {R"({"type": "integer", "minimum": 1.1, "maximum": 2.9})", {"2"}, {"1", "3"}},
         {R"({"type": "integer", "minimum": -1.5, "maximum": -0.5})", {"-1"}, {"-2", "0"}},
         {R"({"minimum": 5})", {"5", "5.5"}, {"4.9"}}});
}

TEST(Schema, BoundsOfNumbers) {
  check(
      {{R"({"type": "number", "minimum": 1.1})", {"1.1", "2.6", "1.10", "10"}, {"0.6", "1.09", "1", "-3"}},
       {R"({"type": "number", "minimum": -2})", {"-1", "0", "-2", "-2.0", "-0.0001", "5"}, {"-2.0001", "-3"}},
       {R"({"type": "number", "maximum": 3.0})", {"2.6", "3", "3.0", "-7.5"}, {"3.5", "3.01"}},
       {R"({"type": "number", "exclusiveMinimum": 1.1})", {"1.2", "1.1001", "2"}, {"1.1", "1.10", "0.6"}},
       {R"({"type": "number", "exclusiveMaximum": 3.0})", {"2.2", "2.99999", "-1"}, {"3.0", "3", "3.5"}},
       {R"({"type": "number", "minimum": 0, "maximum": 1})", {"0", "1", "0.5", "1.0", "0.000"}, {"1.01", "-0.1", "2"}},
       {R"({"type": "number", "minimum": 0.25, "maximum": 0.255})", {"0.25", "0.2549", "0.255"}, {"0.2551", "0.249"}},
       {R"({"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0})", {"-0.4", "-0.0001"}, {"0", "-0.5"}}});
}

// All decimals of up to two digits behind the point, against all pairs of bounds of a quarter.
TEST(Schema, BoundsAgreeWithNumbers) {
  for (int low = -8; low <= 8; low += 3) {
    for (int high = low; high <= 8; high += 2) {
      for (const bool exclusive : {false, true}) {
        const SchemaJson schema = {{"type", "number"},
                                   {exclusive ? "exclusiveMinimum" : "minimum", low / 4.0},
                                   {exclusive ? "exclusiveMaximum" : "maximum", high / 4.0}};
        if (exclusive && low == high) continue;
        const auto grammar = schema_grammar(schema.dump(), "schema.json");
        for (int hundredths = -225; hundredths <= 225; ++hundredths) {
          const double value = hundredths / 100.0;
          if (value == 0) continue;  // "-0" is left out
          const bool inside =
              exclusive ? value > low / 4.0 && value < high / 4.0 : value >= low / 4.0 && value <= high / 4.0;
          EXPECT_EQ(testing::accepts(*grammar, SchemaJson(value).dump()), inside) << schema << " of " << value;
        }
      }
    }
  }
}

TEST(Schema, IntegerBoundsAgreeWithNumbers) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    int64_t low = static_cast<int64_t>(random() % 3000) - 1500, high = static_cast<int64_t>(random() % 3000) - 1500;
    if (low > high) std::swap(low, high);
    const auto grammar =
        schema_grammar(SchemaJson{{"type", "integer"}, {"minimum", low}, {"maximum", high}}.dump(), "s");
    for (int64_t value = -1600; value <= 1600; value += 7) {
      EXPECT_EQ(testing::accepts(*grammar, std::to_string(value)), value >= low && value <= high) << low << " " << high;
    }
    for (const int64_t value : {low - 1, low, high, high + 1}) {
      EXPECT_EQ(testing::accepts(*grammar, std::to_string(value)), value >= low && value <= high) << low << " " << high;
    }
  }
}

TEST(Schema, Lengths) {
  check({{R"({"type": "string", "minLength": 2})", {"\"foo\"", "\"fo\"", "\"😀😀\""}, {"\"f\"", "\"😀\"", "\"\""}},
         {R"({"type": "string", "maxLength": 2})", {"\"f\"", "\"fo\"", "\"😀😀\"", R"("\u00e4\n")"}, {"\"foo\""}},
         {R"({"maxLength": 0})", {"\"\""}, {"\"a\""}},
         {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1})", {"[1]", "[1, 2]"}, {"[]", "[\"a\"]"}},
         {R"({"type": "array", "items": {"type": "integer"}, "maxItems": 2})", {"[]", "[1,2]"}, {"[1,2,3]"}},
         {R"({"maxItems": 0})", {"[]", "[ ]"}, {"[1]"}},
         {R"({"minItems": 2, "maxItems": 2})", {"[1, 2]"}, {"[1]", "[1,2,3]"}},
         {R"({"type": "array", "items": false})", {"[]"}, {"[1]"}},
         {R"({"minLength": 2.0})", {"\"ab\""}, {"\"a\""}}});
}

TEST(Schema, Objects) {
  check({{R"({"type": "object", "properties": {"foo": {"type": "integer"}, "bar": {"type": "string"}}})",
          {R"({"foo": 1, "bar": "baz"})", "{}", R"({"bar":"a"})", R"({"foo":1})"},
          {R"({"foo": 1, "bar": {}})", R"({"foo": [], "bar": {}})", R"({"quux": []})", R"({"foo":1,})",
           R"({"foo":1 "bar":"a"})", R"({"foo":1,"foo":2})"}},
         {R"({"properties": {"foo": {}, "bar": {}}, "required": ["foo"]})",
          {R"({"foo": 1})", R"({"foo": [{}], "bar": 2})"},
          {R"({"bar": 1})", "{}"}},
         {R"({"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]})",
          {R"({"b":2})", R"({"a":1,"b":2})", R"({"b":2,"c":3})", R"({"a":1, "b":2, "c":3})"},
          {R"({"a":1,"c":3})", R"({"a":1})", R"({,"b":2})", R"({"b":2,})"}},
         {R"({"properties": {"foo": {}}, "required": ["foo"], "additionalProperties": {"type": "boolean"}})",
          {R"({"foo": 1})", R"({"foo":1,"quux":true})", R"({"foo":1,"fo":true,"fooo":false,"":true,"ä":true})"},
          {R"({"foo":1,"quux":12})", R"({"foo":1,"foo":true})", R"({"quux":true})"}},
         {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
          {"{}", R"({"a":1})", R"({"a": 1, "b": 2})"},
          {R"({"a":"x"})"}},
         {R"({"type": "object", "additionalProperties": false})", {"{}"}, {R"({"a":1})"}},
         {R"({"properties": {"ä": {}, "äb": {}, "a\"": {}}, "additionalProperties": true})",
          {R"({"ä":1})", R"({"a":1})", R"({"b":1})", R"({"a\"":1})", R"({"aäb":1})"},
          {R"({"ä":1,"ä":2})", "{\"\xc3\":1}"}},
         {R"({"properties": {"foo\nbar": {"type": "number"}}})", {R"({"foo\nbar": 1})"}, {R"({"foo\nbar": "1"})"}},
         {R"({"properties": {"n": {"type": "null"}}, "required": ["n"]})", {R"({"n": null})"}, {R"({"n": 0})"}}});
}

TEST(Schema, AlternativesAndReferences) {
  check(
      {{R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]})", {"1", "\"ab\""}, {"1.5", "\"abc\""}},
       {R"({"anyOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 100}]})",
        {"5", "-3", "100"},
        {"6", "99"}},
       {R"({"allOf": [{"type": "integer"}]})", {"1"}, {"\"a\""}},
       {R"({"$defs": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/b"})", {"5"}, {"\"a\""}},
       {R"({"properties": {"foo": {"$ref": "#"}}, "additionalProperties": false})",
        {R"({"foo": {}})", R"({"foo": {"foo": {}}})"},
        {R"({"bar": 1})", R"({"foo": {"bar": false}})"}},
       {R"({"$defs": {"tilde~field": {"type": "integer"}, "slash/field": {"type": "null"}},
              "properties": {"t": {"$ref": "#/$defs/tilde~0field"}, "s": {"$ref": "#/$defs/slash~1field"}}})",
        {R"({"t":1,"s":null})"},
        {R"({"t":null})", R"({"s":1})"}},
       {R"({"type": "object", "required": ["v"], "properties": {"v": {"type": "integer"},
              "children": {"type": "array", "items": {"$ref": "#"}}}})",
        {R"({"v":1,"children":[{"v":2},{"v":3,"children":[]}]})"},
        {R"({"v":1,"children":[{}]})", R"({"v":1,"children":[1]})"}},
       {"true", {"1", "{}", "\"a\""}, {"", "nul"}},
       {"{}", {"1", "[{}]"}, {"", "]"}}});
}

TEST(Schema, AnnotationsChangeNothing) {
  check({{R"({"title": "T", "description": "d", "default": 5, "examples": [1], "$schema": "x", "$comment": "c",
              "type": "integer", "readOnly": true, "deprecated": false})",
          {"7"},
          {"\"a\""}}});
}

TEST(Schema, SpaceIsShort) {
  check({{R"({"type": "array", "items": {"type": "integer"}})",
          {"[\n  1,\n  2\n]", "[ 1 ]", "\n\n[1]", "[1, 2]"},
          {"[1,  2]", "[1,\n\n2]", "[1] ", "[1 , 2]"}}});
}

TEST(Schema, RefusesByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"not": {}})", "the schema has the keyword \"not\", which is not supported"},
      {R"({"type": "object", "properties": {"a": {"if": {}, "then": {}}}})", "properties.a has the keyword \"if\""},
      {R"({"type": "array", "contains": {}})", "\"contains\""},
      {R"({"type": "object", "dependentRequired": {}})", "\"dependentRequired\""},
      {R"({"type": "object", "unevaluatedProperties": false})", "\"unevaluatedProperties\""},
      {R"({"allOf": [{"type": "string"}, {"nullable": true}]})", "allOf[1] has the keyword \"nullable\""},
      {R"({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"minContains": 1}}})",
       "#/$defs/a has the keyword \"minContains\""},
      {R"({"type": "strin"})", "the type \"strin\""},
      {R"({"type": "string", "format": "regex"})", "the format \"regex\""},
      {R"({"type": "string", "format": 3})", "has the format 3, not text"},
      {R"({"type": "string", "pattern": ["a"]})", "has the pattern [\"a\"], not text"},
      {R"({"type": "string", "pattern": "^([ab]{0,900}c){0,900}$", "maxLength": 5000})", "too large to be combined"},
      {R"({"type": "array", "uniqueItems": true})", "\"uniqueItems\", which is supported only for an enum"},
      {R"({"type": "array", "prefixItems": {}})", "prefixItems that are not a list"},
      {R"({"type": "integer", "multipleOf": 0})", "has the multipleOf 0, not above 0"},
      {R"({"type": "integer", "multipleOf": "2"})", "has the multipleOf \"2\", not a number"},
      {R"({"type": "number", "multipleOf": 0.123456})", "multipleOf 0.123456, which has too many digits"},
      {R"({"type": "integer", "multipleOf": 15013, "minimum": -99999999999, "maximum": 99999999999})",
       "multipleOf 15013, which is too large beside the bounds"},
      {R"({"type": "object", "minProperties": 2})", "has the minProperties 2, which is supported only up to 1"},
      {R"({"type": "object", "maxProperties": 1, "properties": {"a": {}, "b": {}}})",
       "has the maxProperties 1 and 2 properties"},
      {R"({"type": "object", "patternProperties": {"^a": {}, "^b": {}}})", "more than one pattern"},
      {R"({"type": "object", "patternProperties": {"a\\b": {}}})", "has the pattern \"a\\b\""},
      {R"({"type": "object", "propertyNames": {"anyOf": [{"pattern": "a"}, {"pattern": "b"}]}})",
       "propertyNames has alternatives"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "oneOf whose schemas 0 and 1 may both hold"},
      {R"({"oneOf": [{"type": "null"}, {"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]})",
       "oneOf whose schemas 1 and 2 may both hold, which is not supported: use anyOf"},
      {R"({"oneOf": [{"const": {"a": 1, "b": 2}}, {"const": {"b": 2, "a": 1}}]})", "schemas 0 and 1"},
      {R"({"oneOf": []})", "has the oneOf [], not a list of schemas"},
      {R"({"anyOf": {}})", "has the anyOf {}, not a list of schemas"},
      {R"({"$ref": "http://example.com"})", "only references within the schema"},
      {R"({"$ref": 5})", "$ref that is not text"},
      {R"({"$ref": "#/$defs/none"})", "does not resolve"},
      {R"({"$ref": "#"})", "refers to itself"},
      {R"({"$ref": "#", "minLength": 1})", "refers to itself"},
      {R"({"allOf": [{"$ref": "#"}]})", "refers to itself"},
      {R"({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})",
       "refers to itself"},
      {R"({"$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}, "$ref": "#/$defs/a"})",
       "refers to itself"},
      {R"({"required": ["a"], "properties": {"a": {"$ref": "#"}}})", "no finite answer"},
      {R"({"enum": []})", "no finite answer"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "no finite answer"},
      {R"({"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6})", "no finite answer"},
      {R"({"allOf": [{"type": "string"}, {"type": "integer"}]})", "no finite answer"},
      {R"({"type": "string", "pattern": "^a", "allOf": [{"pattern": "^b"}]})", "no finite answer"},
      {R"({"type": "integer", "multipleOf": 50, "minimum": 51, "maximum": 99})", "no finite answer"},
      {R"({"type": "object", "required": ["a"], "additionalProperties": false})", "no finite answer"},
      {R"({"type": "object", "required": ["ab"], "propertyNames": {"maxLength": 1}})", "no finite answer"},
      {R"({"type": "object", "required": [3]})", "required that is not a list of names"},
      {"false", "no finite answer"},
      {R"({"minLength": -1})", "has the minLength -1, not a whole number"},
      {R"({"minimum": "5"})", "has the minimum \"5\", not a number"},
      {R"({"properties": {"a": 5}})", "properties.a is 5, not a schema"},
      {"[]", "not a schema"},
  };
  for (const auto& [schema, why] : cases) {
    testing_support::expect_error(ExitCode::kBadInput, "schema.json", {why},
                                  [&schema = schema] { schema_grammar(schema, "schema.json"); });
  }
}

TEST(Schema, AnyObject) {
  const auto grammar = json_object_grammar();
  for (const char* const text : {"{}", R"({"a": [1, {"b": null}], "c": "d"})", "\n{\n  \"a\": 1.5e3\n}"}) {
    EXPECT_TRUE(testing::accepts(*grammar, text)) << text;
  }
  for (const char* const text : {"[]", "1", "", "{", "{}}", "{a:1}", "```json"}) {
    EXPECT_FALSE(testing::accepts(*grammar, text)) << text;
  }
}

// A text of the grammar, byte by byte; short, since after a while it takes the byte that leads to the fewest others.
std::string random_text(const Grammar& grammar, std::mt19937_64* random) {
  Automaton automaton(grammar);
  GrammarState state = automaton.start();
  std::string text;
  while (text.size() < 4000) {
    std::vector<unsigned char> next;
    for (int byte = 0; byte < 256; ++byte) {
      if (automaton.after(state, static_cast<unsigned char>(byte)) != kDeadState)
        next.push_back(static_cast<unsigned char>(byte));
    }
    if (automaton.complete(state) && (next.empty() || (*random)() % 3 == 0)) return text;
    if (next.empty()) break;
    unsigned char byte = next[(*random)() % next.size()];
    for (const char closing : {'"', '}', ']'}) {  // else a string of any length ends by chance alone
      const bool may = std::find(next.begin(), next.end(), closing) != next.end();
      if (may && (*random)() % 4 == 0) byte = static_cast<unsigned char>(closing);
    }
    text += static_cast<char>(byte);
    state = automaton.after(state, byte);
  }
  ADD_FAILURE() << "no end: " << text;
  return "";
}

TEST(Schema, RandomTextsOfRandomSchemasAreValid) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    const SchemaJson schema = testing_support::random_schema(&random, 3);
    const auto grammar = schema_grammar(schema.dump(), "schema.json");
    const testing_support::JsonValidator validator(schema);
    for (int j = 0; j < 5; ++j) {
      const std::string text = random_text(*grammar, &random);
      const SchemaJson value = SchemaJson::parse(text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << schema << " of " << text;
      EXPECT_TRUE(validator.valid(value)) << schema << " of " << text;
    }
  }
}

}  // namespace
}  // namespace headrace
