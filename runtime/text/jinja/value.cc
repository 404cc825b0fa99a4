#include "runtime/text/jinja/value.h"

#include <algorithm>

#include "cache/base.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/callable.h"

namespace headrace::jinja {

Value::Value(List list) {
  for (const Value& item : list.items) {
    list.depth = std::max(list.depth, 1 + item.depth());
    list.weight = std::min(list.weight + item.weight(), kMaxWeight);
  }
  data_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) {
  for (const auto& [key, value] : dict.entries) {
    dict.depth = std::max({dict.depth, 1 + key.depth(), 1 + value.depth()});
    dict.weight = std::min(dict.weight + key.weight() + value.weight(), kMaxWeight);
  }
  const uint64_t entries = dict.entries.size();
  dict.weight = std::min(dict.weight + entries * entries / 256, kMaxWeight);  // two are compared key by key
  data_ = std::make_shared<const Dict>(std::move(dict));
}

Value Value::undefined(std::string why) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(why))};
  return value;
}

std::string Value::why_undefined() const {
  const auto* undefined = std::get_if<Undefined>(&data_);
  if (!undefined) return "";
  return undefined->why ? *undefined->why : "the value is undefined";
}

int Value::depth() const { return list() ? list()->depth : dict() ? dict()->depth : 0; }

uint64_t Value::weight() const {
  if (text()) return 1 + text()->size() / kBytesPerWeight;
  return list() ? list()->weight : dict() ? dict()->weight : 1;
}

bool Value::whole(int64_t* out) const {
  if (integer()) *out = *integer();
  if (boolean()) *out = *boolean() ? 1 : 0;
  return is_whole();
}

bool Value::number(double* out) const {
  int64_t integer_value = 0;
  if (real()) *out = *real();
  if (whole(&integer_value)) *out = static_cast<double>(integer_value);
  return real() || is_whole();
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [name, value] : entries)
    if (equal_values(name, key)) return &value;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries)
    if (name.text() && name.text()->bytes() == key) return &value;
  return nullptr;
}

void Dict::set(Value key, Value value) {
  const auto at =
      std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return equal_values(e.first, key); });
  if (at == entries.end()) {
    entries.emplace_back(std::move(key), std::move(value));
  } else {
    at->second = std::move(value);
  }
}

Value* Namespace::find(std::string_view name) {
  for (auto& [attribute, value] : attributes)
    if (attribute == name) return &value;
  return nullptr;
}

const char* type_name(const Value& value) {
  if (value.is_undefined()) return "undefined";
  if (value.is_none()) return "NoneType";
  if (value.boolean()) return "bool";
  if (value.integer()) return "int";
  if (value.real()) return "float";
  if (value.text()) return "str";
  if (value.list()) return value.list()->is_tuple ? "tuple" : "list";
  if (value.dict()) return "dict";
  if (value.space()) return "namespace";
  return value.loop() ? "loop" : "function";
}

bool truthy(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  double number = 0;
  if (value.number(&number)) return number != 0;
  if (value.text()) return !value.text()->empty();
  if (value.list()) return !value.list()->items.empty();
  if (value.dict()) return !value.dict()->entries.empty();
  return true;
}

namespace {

int sign(bool less, bool greater) { return less ? -1 : greater ? 1 : 0; }

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
    const Value* other = b.find(entry.first);
    return other && equal_values(entry.second, *other);
  });
}

}  // namespace

bool equal_values(const Value& a, const Value& b) {
  int64_t i = 0, j = 0;
  if (a.whole(&i) && b.whole(&j)) return i == j;
  double x = 0, y = 0;
  if (a.number(&x) && b.number(&y)) return x == y;
  if (a.text() && b.text()) return a.text()->bytes() == b.text()->bytes();
  if (a.list() && b.list())
    return a.list()->is_tuple == b.list()->is_tuple &&
           std::equal(a.list()->items.begin(), a.list()->items.end(), b.list()->items.begin(), b.list()->items.end(),
                      equal_values);
  if (a.dict() && b.dict()) return equal_dicts(*a.dict(), *b.dict());
  if (a.space() || b.space()) return a.space() == b.space();
  if (a.callable() || b.callable()) return a.callable() == b.callable();
  if (a.loop() || b.loop()) return a.loop() == b.loop();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool compare(const Value& a, const Value& b, int* order) {
  int64_t i = 0, j = 0;
  double x = 0, y = 0;
  if (a.whole(&i) && b.whole(&j)) {
    *order = sign(i<j, i> j);
  } else if (a.number(&x) && b.number(&y)) {
    *order = sign(x<y, x> y);
  } else if (a.text() && b.text()) {  // UTF-8 sorts as its code points do
    const int c = a.text()->bytes().compare(b.text()->bytes());
    *order = sign(c<0, c> 0);
  } else if (a.list() && b.list() && a.list()->is_tuple == b.list()->is_tuple) {
    const auto &left = a.list()->items, &right = b.list()->items;
    *order = sign(left.size() < right.size(), left.size() > right.size());
    for (size_t n = 0; n < std::min(left.size(), right.size()); ++n)
      if (!equal_values(left[n], right[n])) return compare(left[n], right[n], order);
  } else {
    return false;
  }
  return true;
}

namespace {

Text valid_text(const std::string& bytes, Origin origin) {
  std::string valid;
  append_valid_utf8(bytes, &valid);
  return Text(std::move(valid), origin);
}

Value from_json(const nlohmann::ordered_json& json, Origin origin, const std::string& source, int depth) {
  if (depth > kMaxValueDepth)
    throw_error(ExitCode::kBadInput, source, str("nests more than ", kMaxValueDepth, " lists and objects"));
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer() && (!json.is_number_unsigned() || json.get<uint64_t>() <= INT64_MAX))
    return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return valid_text(json.get_ref<const std::string&>(), origin);
  if (json.is_array()) {
    List list;
    for (const auto& item : json) list.items.push_back(from_json(item, origin, source, depth + 1));
    return list;
  }
  if (!json.is_object()) return None();
  Dict dict;
  for (const auto& [key, value] : json.items())
    dict.entries.emplace_back(valid_text(key, origin), from_json(value, origin, source, depth + 1));
  return dict;
}

}  // namespace

Value from_json(const nlohmann::ordered_json& json, Origin origin, const std::string& source) {
  return from_json(json, origin, source, 1);
}

}  // namespace headrace::jinja
