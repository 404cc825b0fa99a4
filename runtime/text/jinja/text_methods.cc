// The methods of str.
#include <algorithm>
#include <type_traits>

#include "cache/base.h"
#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operations.h"

namespace headrace::jinja {

namespace {

using Values = std::vector<const Value*>;

const Text* text_or_null(const Runtime& runtime, const Value* value, std::string_view what) {
  return value && !value->is_none() ? &runtime.need_text(*value, what) : nullptr;
}

Value list_of(Runtime& runtime, std::vector<Text> parts) {
  std::vector<Value> out;
  for (Text& part : parts) out.push_back(std::move(part));
  return runtime.list(std::move(out));
}

std::vector<Text> split_at(Runtime& runtime, const Text& text, const std::string& mark, int64_t most) {
  std::vector<Text> out;
  size_t begin = 0;
  for (size_t at = find_part(text.bytes(), mark); at != std::string::npos && (most < 0 || most-- > 0);
       at = find_part(text.bytes(), mark, begin)) {
    runtime.charge(8);
    out.push_back(text.slice(begin, at));
    begin = at + mark.size();
  }
  out.push_back(text.slice(begin, text.size()));
  return out;
}

// Backward, as split_at() does it forward.
std::vector<Text> split_at_end(Runtime& runtime, const Text& text, const std::string& mark, int64_t most) {
  const std::string backward(text.bytes().rbegin(), text.bytes().rend()), wanted(mark.rbegin(), mark.rend());
  std::vector<Text> out;
  size_t begin = 0;  // in `backward`
  const auto forward = [&](size_t at) { return text.size() - at; };
  for (size_t at = find_part(backward, wanted); at != std::string::npos && (most < 0 || most-- > 0);
       at = find_part(backward, wanted, begin)) {
    runtime.charge(8);
    out.push_back(text.slice(forward(at), forward(begin)));
    begin = at + mark.size();
  }
  out.push_back(text.slice(0, forward(begin)));
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<Text> split_at_space(Runtime& runtime, const Text& text, int64_t most) {
  std::vector<Text> out;
  const std::string_view all = text.bytes();
  std::string_view rest = without_leading_space(all);
  while (!rest.empty()) {
    const size_t begin = all.size() - rest.size();
    runtime.charge(8);
    if (most == 0) {
      out.push_back(text.slice(begin, text.size()));
      break;
    }
    --most;
    size_t end = begin;
    for (; end < all.size() && !is_space(first_character(all.substr(end)));) {
      do ++end;
      while (end < all.size() && (static_cast<uint8_t>(all[end]) & 0xC0) == 0x80);
    }
    out.push_back(text.slice(begin, end));
    rest = without_leading_space(all.substr(end));
  }
  return out;
}

Value split(Runtime& runtime, const Text& text, const std::string& name, const Values& values) {
  const Text* mark = text_or_null(runtime, values[0], name);
  const int64_t most = values[1] ? runtime.need_whole(*values[1], name) : -1;
  if (!mark && name == "rsplit" && most >= 0) runtime.fail("rsplit needs a separator if it has a limit");
  if (!mark) return list_of(runtime, split_at_space(runtime, text, most));
  if (mark->empty()) runtime.fail("the separator is empty");
  runtime.charge_search(text, *mark);
  return list_of(runtime, (name == "split" ? split_at : split_at_end)(runtime, text, mark->bytes(), most));
}

bool matches_end(const Runtime& runtime, const Text& text, const std::string& name, const Value& value) {
  if (value.list() && value.list()->is_tuple) {
    const auto& items = value.list()->items;
    return std::any_of(items.begin(), items.end(),
                       [&](const Value& one) { return matches_end(runtime, text, name, one); });
  }
  const std::string& part = runtime.need_text(value, name).bytes();
  return name == "startswith" ? text.bytes().starts_with(part) : text.bytes().ends_with(part);
}

Value found(Runtime& runtime, const Text& text, const std::string& name, const Value& value) {
  runtime.charge_search(text, runtime.need_text(value, name));
  const std::string &part = runtime.need_text(value, name).bytes(), &all = text.bytes();
  const bool from_end = name[0] == 'r';
  const size_t at = part.empty() ? (from_end ? all.size() : 0)
                    : from_end   ? find_last_part(all, part)
                                 : find_part(all, part);
  if (at != std::string::npos) return static_cast<int64_t>(count_characters(std::string_view(all).substr(0, at)));
  if (name == "index" || name == "rindex") runtime.fail(str(name, ": the text is not in the str"));
  return int64_t{-1};
}

Value count(Runtime& runtime, const Text& text, const std::string& name, const Value& value) {
  runtime.charge_search(text, runtime.need_text(value, name));
  const std::string& part = runtime.need_text(value, name).bytes();
  if (part.empty()) return static_cast<int64_t>(count_characters(text.bytes())) + 1;
  int64_t times = 0;
  for (size_t at = find_part(text.bytes(), part); at != std::string::npos;
       at = find_part(text.bytes(), part, at + part.size()))
    ++times;
  return times;
}

Value join_items(Runtime& runtime, const Text& separator, const Value& list) {
  Text out;
  bool first = true;
  for (const Value& one : items_of(runtime, list)) {
    const Text& part = runtime.need_text(one, "join");
    runtime.charge_bytes(separator.size() + part.size());
    if (!first) out.append(separator);
    first = false;
    out.append(part);
  }
  return runtime.text(std::move(out));
}

Value without_end(const Runtime& runtime, const Text& text, const std::string& name, const Value& value) {
  const std::string& part = runtime.need_text(value, name).bytes();
  if (name == "removeprefix") return text.bytes().starts_with(part) ? text.slice(part.size(), text.size()) : text;
  return text.bytes().ends_with(part) ? text.slice(0, text.size() - part.size()) : text;
}

Value partition(Runtime& runtime, const Text& text, const std::string& name, const Value& value) {
  const Text& mark = runtime.need_text(value, name);
  if (mark.empty()) runtime.fail("the separator is empty");
  runtime.charge_search(text, mark);
  const size_t at = name[0] == 'r' ? find_last_part(text.bytes(), mark.bytes()) : find_part(text.bytes(), mark.bytes());
  if (at == std::string::npos)
    return name[0] == 'r' ? runtime.tuple({Text(), Text(), text}) : runtime.tuple({text, Text(), Text()});
  return runtime.tuple({text.slice(0, at), mark, text.slice(at + mark.size(), text.size())});
}

Value padded(Runtime& runtime, const Text& text, const std::string& name, const Value& value) {
  const int64_t width = runtime.need_whole(value, name);
  const auto length = static_cast<int64_t>(count_characters(text.bytes()));
  if (width <= length) return text;
  runtime.charge(static_cast<uint64_t>(width - length));
  const size_t sign = text.bytes().starts_with('-') || text.bytes().starts_with('+') ? 1 : 0;
  Text out = text.slice(0, sign);
  out.append(std::string(static_cast<size_t>(width - length), '0'), Origin::kTemplate);
  out.append(text.slice(sign, text.size()));
  return out;
}

struct Method {
  std::string_view name;
  std::initializer_list<std::string_view> parameters;
  size_t required;
  Value (*call)(Runtime& runtime, const Text& text, const std::string& name, const Values& values);
};

template <CharacterClass wanted>
Value is_class(Runtime&, const Text& text, const std::string&, const Values&) {
  return all_of_class(text.bytes(), wanted);
}

template <Side side>
Value strip(Runtime& runtime, const Text& text, const std::string& name, const Values& values) {
  return stripped(runtime, text, side, text_or_null(runtime, values[0], name));
}

// Adapts a function of the text, and of the first argument and what else it needs, to a method.
template <auto function>
Value method(Runtime& runtime, const Text& text, const std::string& name, const Values& values) {
  if constexpr (std::is_invocable_v<decltype(function), const Text&>) {
    return function(text);
  } else if constexpr (std::is_invocable_v<decltype(function), Runtime&, const Text&>) {
    return function(runtime, text);
  } else if constexpr (std::is_invocable_v<decltype(function), Runtime&, const Text&, const Value&>) {
    return function(runtime, text, *values[0]);
  } else {
    return function(runtime, text, name, *values[0]);
  }
}

Value replace(Runtime& runtime, const Text& text, const std::string& name, const Values& values) {
  return replaced(runtime, text, runtime.need_text(*values[0], name), runtime.need_text(*values[1], name),
                  values[2] ? runtime.need_whole(*values[2], name) : -1);
}

Value split_lines(Runtime& runtime, const Text& text, const std::string&, const Values& values) {
  return list_of(runtime, lines_of(runtime, text, values[0] && truthy(*values[0])));
}

Value upper_case(const Text& text) { return text.mapped(upper); }
Value lower_case(const Text& text) { return text.mapped(lower); }
Value titled(Runtime& runtime, const Text& text) { return title_case(runtime, text, false); }
Value with_capital(const Text& text) { return capitalized(text); }

const Method kMethods[] = {
    {"strip", {"chars"}, 0, strip<Side::kBoth>},
    {"lstrip", {"chars"}, 0, strip<Side::kLeft>},
    {"rstrip", {"chars"}, 0, strip<Side::kRight>},
    {"split", {"sep", "maxsplit"}, 0, split},
    {"rsplit", {"sep", "maxsplit"}, 0, split},
    {"splitlines", {"keepends"}, 0, split_lines},
    {"startswith", {"prefix"}, 1, method<matches_end>},
    {"endswith", {"suffix"}, 1, method<matches_end>},
    {"find", {"sub"}, 1, method<found>},
    {"rfind", {"sub"}, 1, method<found>},
    {"index", {"sub"}, 1, method<found>},
    {"rindex", {"sub"}, 1, method<found>},
    {"removeprefix", {"prefix"}, 1, method<without_end>},
    {"removesuffix", {"suffix"}, 1, method<without_end>},
    {"replace", {"old", "new", "count"}, 2, replace},
    {"count", {"sub"}, 1, method<count>},
    {"join", {"iterable"}, 1, method<join_items>},
    {"partition", {"sep"}, 1, method<partition>},
    {"rpartition", {"sep"}, 1, method<partition>},
    {"zfill", {"width"}, 1, method<padded>},
    {"upper", {}, 0, method<upper_case>},
    {"lower", {}, 0, method<lower_case>},
    {"title", {}, 0, method<titled>},
    {"capitalize", {}, 0, method<with_capital>},
    {"isalpha", {}, 0, is_class<CharacterClass::kAlpha>},
    {"isdigit", {}, 0, is_class<CharacterClass::kDigit>},
    {"isnumeric", {}, 0, is_class<CharacterClass::kDigit>},
    {"isdecimal", {}, 0, is_class<CharacterClass::kDigit>},
    {"isalnum", {}, 0, is_class<CharacterClass::kAlnum>},
    {"isspace", {}, 0, is_class<CharacterClass::kSpace>},
    {"isupper", {}, 0, is_class<CharacterClass::kUpper>},
    {"islower", {}, 0, is_class<CharacterClass::kLower>},
};

constexpr std::string_view kFormat = "format";  // takes any arguments

const Method* method_named(std::string_view name) { return named(kMethods, name); }

}  // namespace

bool text_has(std::string_view name) { return name == kFormat || method_named(name) != nullptr; }

Value call_text_method(Runtime& runtime, const Text& text, const std::string& name, const Arguments& arguments) {
  if (name == kFormat) return braces_formatted(runtime, text, arguments);
  const Method* method = method_named(name);
  runtime.charge(1 + text.size() / kBytesPerWeight);
  return method->call(runtime, text, name, bound(runtime, arguments, name, method->parameters, method->required));
}

}  // namespace headrace::jinja
