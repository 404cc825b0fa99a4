// Filters from one value to one: texts, numbers, JSON.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "cache/base.h"
#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operations.h"
#include "runtime/text/jinja/print.h"

namespace headrace::jinja {

namespace {

Text only_text(Runtime& runtime, const Arguments& arguments, std::string_view name) {
  return printed(runtime, *bound(runtime, arguments, name, {"value"}, 1)[0]);
}

Value to_upper(Runtime& runtime, const Arguments& a) { return only_text(runtime, a, "upper").mapped(upper); }
Value to_lower(Runtime& runtime, const Arguments& a) { return only_text(runtime, a, "lower").mapped(lower); }
Value to_title(Runtime& runtime, const Arguments& a) {
  return title_case(runtime, only_text(runtime, a, "title"), true);
}
Value capitalize(Runtime& runtime, const Arguments& a) { return capitalized(only_text(runtime, a, "capitalize")); }
Value string(Runtime& runtime, const Arguments& a) { return only_text(runtime, a, "string"); }

Value escape(Runtime& runtime, const Arguments& arguments) {
  return runtime.text(only_text(runtime, arguments, "escape").mapped([](std::string_view run) {
    std::string out;
    for (char c : run) {
      if (c == '&' || c == '<' || c == '>') {
        out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : "&gt;";
      } else if (c == '"' || c == '\'') {
        out += c == '"' ? "&#34;" : "&#39;";
      } else {
        out += c;
      }
    }
    return out;
  }));
}

Value trim(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "trim", {"value", "chars"}, 1);
  const bool with_set = values[1] && !values[1]->is_none();
  return stripped(runtime, printed(runtime, *values[0]), Side::kBoth,
                  with_set ? &runtime.need_text(*values[1], "trim") : nullptr);
}

Value replace(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "replace", {"s", "old", "new", "count"}, 3);
  const bool limited = values[3] && !values[3]->is_none();
  return replaced(runtime, printed(runtime, *values[0]), printed(runtime, *values[1]), printed(runtime, *values[2]),
                  limited ? runtime.need_whole(*values[3], "replace") : -1);
}

// Spaces before every line but the first; before it too with `first`, before empty lines with `blank`.
Value indent(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "indent", {"s", "width", "first", "blank"}, 1);
  Text margin;
  if (values[1] && values[1]->text()) {
    margin = *values[1]->text();
  } else {
    const int64_t width = values[1] ? runtime.need_whole(*values[1], "indent") : 4;
    if (width > 1000) runtime.fail(str("indent by ", width, " is more than 1000"));
    margin = Text(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '));
  }
  const bool first = values[2] && truthy(*values[2]), blank = values[3] && truthy(*values[3]);
  Text text = runtime.need_text(*values[0], "indent"), out;
  text.append("\n", Origin::kTemplate);
  const std::vector<Text> lines = lines_of(runtime, text, false);
  runtime.charge((1 + margin.size()) * lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", Origin::kTemplate);
    if (i == 0 ? first : blank || !lines[i].empty()) out.append(margin);
    out.append(lines[i]);
  }
  return runtime.text(std::move(out));
}

Value format(Runtime& runtime, const Arguments& arguments) {
  if (!arguments.named.empty()) runtime.fail("format: named values are not supported");
  if (arguments.positional.empty()) runtime.fail("format needs 'value'");
  return formatted(runtime, printed(runtime, arguments.positional[0]),
                   {arguments.positional.begin() + 1, arguments.positional.end()});
}

Value tojson(Runtime& runtime, const Arguments& arguments) {
  const auto values =
      bound(runtime, arguments, "tojson", {"x", "ensure_ascii", "indent", "separators", "sort_keys"}, 1);
  JsonStyle style;
  style.ascii = values[1] && truthy(*values[1]);
  if (values[2] && !values[2]->is_none()) {
    style.indent = std::max<int64_t>(runtime.need_whole(*values[2], "tojson"), 0);
    if (style.indent > 100) runtime.fail(str("tojson: an indent of ", style.indent, " is more than 100"));
    style.item_separator = ",";
  }
  if (values[3] && !values[3]->is_none()) {
    const List* both = values[3]->list();
    if (!both || both->items.size() != 2) runtime.fail("tojson: separators are two strs");
    const Text &item = runtime.need_text(both->items[0], "tojson"), &key = runtime.need_text(both->items[1], "tojson");
    // They are printed as the template's own text.
    if (item.has_messages() || key.has_messages()) runtime.fail("tojson: a message's text cannot be a separator");
    style.item_separator = item.bytes();
    style.key_separator = key.bytes();
  }
  style.sort_keys = values[4] && truthy(*values[4]);
  return runtime.text(json_text(runtime, *values[0], style));
}

// The number that a text begins and ends with, white space apart; false if it is none.
template <typename Number>
bool parsed(const std::string& text, Number* out) {
  std::string_view rest = without_trailing_space(without_leading_space(text));
  if (rest.size() > 1 && rest[0] == '+' && rest[1] != '-') rest.remove_prefix(1);
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), *out);
  return error == std::errc() && end == rest.data() + rest.size();
}

Value to_int(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "int", {"value", "default"}, 1);
  if (values[0]->is_undefined()) runtime.fail(values[0]->why_undefined());
  int64_t whole = 0;
  double real = 0;
  if (values[0]->whole(&whole)) return whole;
  if (values[0]->text() && parsed(values[0]->text()->bytes(), &whole)) return whole;
  const bool is_real = values[0]->number(&real) || (values[0]->text() && parsed(values[0]->text()->bytes(), &real));
  if (is_real && real > -9e18 && real < 9e18) return static_cast<int64_t>(real);
  return values[1] ? *values[1] : Value(int64_t{0});
}

Value to_float(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "float", {"value", "default"}, 1);
  if (values[0]->is_undefined()) runtime.fail(values[0]->why_undefined());
  double real = 0;
  if (values[0]->number(&real) || (values[0]->text() && parsed(values[0]->text()->bytes(), &real))) return real;
  return values[1] ? *values[1] : Value(0.0);
}

Value absolute(Runtime& runtime, const Arguments& arguments) {
  const Value& value = *bound(runtime, arguments, "abs", {"x"}, 1)[0];
  return unary(runtime, compared(runtime, "<", value, int64_t{0}) ? "-" : "+", value);
}

Value round(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "round", {"value", "precision", "method"}, 1);
  double real = 0;
  if (!values[0]->number(&real)) runtime.fail(str("round needs a number, not a ", type_name(*values[0])));
  const int64_t precision = values[1] ? runtime.need_whole(*values[1], "round") : 0;
  const std::string method = values[2] ? runtime.need_text(*values[2], "round").bytes() : "common";
  if (precision < -300 || precision > 300) runtime.fail(str("round: a precision of ", precision));
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return std::ceil(real * scale) / scale;
  if (method == "floor") return std::floor(real * scale) / scale;
  if (method != "common") runtime.fail(str("round: '", method, "' is not common, ceil or floor"));
  const double rounded = std::nearbyint(real * scale) / scale;
  int64_t whole = 0;
  if (!values[0]->whole(&whole)) return rounded;
  return precision >= 0 ? whole : static_cast<int64_t>(rounded);  // of an int: an int
}

Value word_count(Runtime& runtime, const Arguments& arguments) {
  const Text text = only_text(runtime, arguments, "wordcount");
  int64_t words = 0;
  bool inside = false;
  const std::vector<size_t> starts = runtime.character_starts(text.bytes());
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const char32_t c = first_character(std::string_view(text.bytes()).substr(starts[i]));
    const bool is_word = is_letter(c) || (c >= '0' && c <= '9') || c == '_';
    words += is_word && !inside;
    inside = is_word;
  }
  return words;
}

Value same(Runtime& runtime, const Arguments& arguments) { return *bound(runtime, arguments, "safe", {"value"}, 1)[0]; }

Value preset(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "default", {"value", "default_value", "boolean"}, 1);
  const bool missing = values[0]->is_undefined() || (values[2] && truthy(*values[2]) && !truthy(*values[0]));
  if (!missing) return *values[0];
  return values[1] ? *values[1] : Value(Text());
}

constexpr Filter kTextFilters[] = {
    {"upper", to_upper}, {"lower", to_lower},       {"title", to_title}, {"capitalize", capitalize},
    {"string", string},  {"escape", escape},        {"e", escape},       {"forceescape", escape},
    {"trim", trim},      {"replace", replace},      {"indent", indent},  {"format", format},
    {"tojson", tojson},  {"int", to_int},           {"float", to_float}, {"abs", absolute},
    {"round", round},    {"wordcount", word_count}, {"safe", same},      {"default", preset},
    {"d", preset},
};

}  // namespace

std::span<const Filter> text_filters() { return kTextFilters; }

}  // namespace headrace::jinja
