#include "runtime/text/jinja/runtime.h"

#include <algorithm>

#include "cache/base.h"
#include "runtime/text/jinja/callable.h"

namespace headrace::jinja {

void Runtime::fail(const std::string& what) const {
  throw_error(ExitCode::kBadInput, str(source_, ":", line_), what,
              "the chat template failed; choose another with --chat-template or --chat-template-file");
}

void Runtime::charge(uint64_t steps) {
  if (steps > limits_.steps || (steps_ += steps) > limits_.steps)
    fail(str("the template takes more than ", limits_.steps, " steps"));
}

bool Runtime::equal(const Value& a, const Value& b) {
  charge(std::min(a.weight(), b.weight()));
  return equal_values(a, b);
}

void Runtime::charge_search(const Text& text, const Text& part) {
  constexpr uint64_t kComparedPerStep = 16384;
  uint64_t compared = 0;
  if (!checked_mul(text.size(), part.size(), &compared)) compared = UINT64_MAX;
  charge(1 + text.size() / kBytesPerWeight + compared / kComparedPerStep);
}

std::vector<size_t> Runtime::character_starts(std::string_view text) {
  charge(1 + text.size() / 2);
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) starts.push_back(i);
  starts.push_back(text.size());
  return starts;
}

void Runtime::check_member(const Value& value) const {
  if (!value.is_data()) fail(str("a ", type_name(value), " cannot be stored in a list or dict"));
  if (value.depth() >= kMaxValueDepth) fail(str("nests more than ", kMaxValueDepth, " lists and dicts"));
}

Value Runtime::checked_list(std::vector<Value> items, bool is_tuple) {
  charge(1 + items.size());
  for (const Value& item : items) check_member(item);
  return List{std::move(items), is_tuple};
}

Value Runtime::list(std::vector<Value> items) { return checked_list(std::move(items), false); }
Value Runtime::tuple(std::vector<Value> items) { return checked_list(std::move(items), true); }

Value Runtime::dict(Dict dict) {
  charge(1 + 2 * dict.entries.size());
  for (const auto& [key, value] : dict.entries) {
    check_member(value);
    if (key.dict() || (key.list() && !key.list()->is_tuple) || !key.is_data())
      fail(str("a ", type_name(key), " cannot be a key of a dict"));
    check_member(key);
  }
  return dict;
}

Value Runtime::text(Text text) {
  charge(1 + text.size() / kBytesPerWeight);
  return text;
}

const Text& Runtime::need_text(const Value& value, std::string_view what) const {
  if (value.is_undefined()) fail(value.why_undefined());
  if (!value.text()) fail(str(what, " needs a str, not a ", type_name(value)));
  return *value.text();
}

int64_t Runtime::need_whole(const Value& value, std::string_view what) const {
  int64_t out = 0;
  if (value.is_undefined()) fail(value.why_undefined());
  if (!value.whole(&out)) fail(str(what, " needs an int, not a ", type_name(value)));
  return out;
}

std::vector<const Value*> bound(const Runtime& runtime, const Arguments& arguments, std::string_view what,
                                std::initializer_list<std::string_view> names, size_t required) {
  std::vector<const Value*> out(names.size(), nullptr);
  if (arguments.positional.size() > names.size())
    runtime.fail(str(what, " has ", names.size(), " parameters, not ", arguments.positional.size()));
  for (size_t i = 0; i < arguments.positional.size(); ++i) out[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) runtime.fail(str(what, " has no parameter '", name, "'"));
    const Value*& slot = out[static_cast<size_t>(found - names.begin())];
    if (slot) runtime.fail(str(what, " has '", name, "' twice"));
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!out[i]) runtime.fail(str(what, " needs '", *(names.begin() + i), "'"));
  return out;
}

}  // namespace headrace::jinja
