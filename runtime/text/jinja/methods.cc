#include "runtime/text/jinja/methods.h"

#include <algorithm>
#include <array>

#include "cache/base.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/characters.h"

namespace headrace::jinja {

namespace {

constexpr std::array<std::string_view, 5> kOfDict = {"get", "items", "keys", "values", "copy"};
constexpr std::array<std::string_view, 5> kChangeDict = {"pop", "popitem", "update", "setdefault", "clear"};
constexpr std::array<std::string_view, 3> kOfList = {"index", "count", "copy"};
constexpr std::array<std::string_view, 8> kChangeList = {"append", "extend", "insert", "pop",
                                                         "remove", "sort",   "clear",  "reverse"};

template <typename Names>
bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value dict_method(Runtime& runtime, const Value& receiver, const std::string& name, const Arguments& arguments) {
  const Dict& dict = *receiver.dict();
  if (name == "get") {
    const auto values = bound(runtime, arguments, name, {"key", "default"}, 1);
    runtime.charge(1 + dict.entries.size() / 8 + values[0]->weight());
    const Value* found = dict.find(*values[0]);
    return found ? *found : values[1] ? *values[1] : Value(None());
  }
  bound(runtime, arguments, name, {}, 0);
  if (name == "copy") return receiver;
  if (name == "items") return pairs_of(runtime, dict);
  std::vector<Value> out;
  for (const auto& [key, value] : dict.entries) out.push_back(name == "keys" ? key : value);
  return runtime.list(std::move(out));
}

Value list_method(Runtime& runtime, const Value& receiver, const std::string& name, const Arguments& arguments) {
  if (name == "copy") {
    bound(runtime, arguments, name, {}, 0);
    return receiver;
  }
  const auto values = bound(runtime, arguments, name, {"value"}, 1);
  const auto& items = receiver.list()->items;
  const auto is_it = [&](const Value& item) { return runtime.equal(item, *values[0]); };
  if (name == "count") return static_cast<int64_t>(std::count_if(items.begin(), items.end(), is_it));
  const auto at = std::find_if(items.begin(), items.end(), is_it);
  if (at == items.end()) runtime.fail("index: the value is not in the list");
  return static_cast<int64_t>(at - items.begin());
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  if (value.text()) return text_has(name);
  if (value.dict()) return has(kOfDict, name) || has(kChangeDict, name);
  if (!value.list()) return false;
  return value.list()->is_tuple ? name != "copy" && has(kOfList, name) : has(kOfList, name) || has(kChangeList, name);
}

Value call_method(Runtime& runtime, const Value& receiver, std::string_view name, const Arguments& arguments) {
  const std::string method(name);
  if (receiver.text()) return call_text_method(runtime, *receiver.text(), method, arguments);
  if (receiver.dict() ? has(kChangeDict, name) : has(kChangeList, name))
    runtime.fail(str("'", name, "' would change a ", type_name(receiver), "; templates cannot"));
  return (receiver.dict() ? dict_method : list_method)(runtime, receiver, method, arguments);
}

Value pairs_of(Runtime& runtime, const Dict& dict) {
  std::vector<Value> out;
  for (const auto& [key, value] : dict.entries) out.push_back(runtime.tuple({key, value}));
  return runtime.list(std::move(out));
}

Text stripped(Runtime& runtime, const Text& text, Side side, const Text* set) {
  runtime.charge_bytes(text.size());
  const std::string_view all = text.bytes();
  size_t begin = 0, end = all.size();
  if (!set) {
    if (side != Side::kRight) begin = end - without_leading_space(all).size();
    if (side != Side::kLeft) end = begin + without_trailing_space(all.substr(begin)).size();
    return text.slice(begin, end);
  }
  runtime.charge_bytes(set->size());
  const std::vector<size_t> starts = runtime.character_starts(set->bytes());
  const auto in_set = [&](std::string_view character) {
    runtime.charge(1 + starts.size() / 8);
    for (size_t i = 0; i + 1 < starts.size(); ++i)
      if (std::string_view(set->bytes()).substr(starts[i], starts[i + 1] - starts[i]) == character) return true;
    return false;
  };
  const auto continues = [&](size_t at) { return (static_cast<uint8_t>(all[at]) & 0xC0) == 0x80; };
  while (side != Side::kRight && begin < end) {
    size_t next = begin + 1;
    while (next < end && continues(next)) ++next;
    if (!in_set(all.substr(begin, next - begin))) break;
    begin = next;
  }
  while (side != Side::kLeft && begin < end) {
    size_t last = end - 1;
    while (last > begin && continues(last)) --last;
    if (!in_set(all.substr(last, end - last))) break;
    end = last;
  }
  return text.slice(begin, end);
}

Text replaced(Runtime& runtime, const Text& text, const Text& from, const Text& to, int64_t most) {
  Text out;
  size_t done = 0;
  const auto append_new = [&] {
    runtime.charge(1 + to.size() / kBytesPerWeight);
    out.append(to);
  };
  runtime.charge_search(text, from);
  if (from.empty()) {  // before every character and at the end
    for (size_t at : runtime.character_starts(text.bytes())) {
      out.append(text.slice(done, at));
      done = at;
      if (most == 0) break;
      if (most > 0) --most;
      append_new();
    }
  } else {
    for (size_t at = find_part(text.bytes(), from.bytes()); at != std::string::npos && most != 0;
         at = find_part(text.bytes(), from.bytes(), done)) {
      if (most > 0) --most;
      out.append(text.slice(done, at));
      append_new();
      done = at + from.size();
    }
  }
  out.append(text.slice(done, text.size()));
  return out;
}

std::vector<Text> lines_of(Runtime& runtime, const Text& text, bool with_ends) {
  std::vector<Text> out;
  const std::string_view all = text.bytes();
  const std::vector<size_t> starts = runtime.character_starts(all);
  size_t begin = 0;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    if (!is_line_end(first_character(all.substr(starts[i])))) continue;
    const size_t line_end = starts[i];
    if (all[line_end] == '\r' && line_end + 1 < all.size() && all[line_end + 1] == '\n') ++i;
    runtime.charge(8);
    out.push_back(text.slice(begin, with_ends ? starts[i + 1] : line_end));
    begin = starts[i + 1];
  }
  if (begin < all.size()) out.push_back(text.slice(begin, all.size()));
  return out;
}

// Upper case for the first letter of each word, lower case for the others.
Text title_case(Runtime& runtime, const Text& text, bool after_spaces_only) {
  Text out;
  bool begins = true;
  for (const Text::Run& run : text.runs()) {
    const std::vector<size_t> starts = runtime.character_starts(run.bytes);
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      const std::string_view character = run.bytes.substr(starts[i], starts[i + 1] - starts[i]);
      const char32_t c = first_character(character);
      out.append(!begins ? lower(character) : after_spaces_only ? upper(character) : title(character), run.origin);
      const bool parts = c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos;
      begins = after_spaces_only ? is_space(c) || parts : !is_letter(c);
    }
  }
  return out;
}

Text capitalized(const Text& text) {
  if (text.empty()) return text;
  const size_t first = utf8_length(text.bytes()[0]);
  Text out = text.slice(0, first).mapped(title);
  out.append(text.slice(first, text.size()).mapped(lower));
  return out;
}

}  // namespace headrace::jinja
