#include "runtime/base/json_file.h"

#include <cmath>

#include "cache/base.h"
#include "runtime/base/input_file.h"
#include "runtime/base/json_reader.h"

namespace headrace {

using nlohmann::json;
using nlohmann::ordered_json;

json parse_json(std::string_view text, const std::string& source, DuplicateKeys duplicates, JsonOrigin origin) {
  JsonText whole(text, source, origin);
  return JsonReader<json>(&whole, duplicates).document();
}

ordered_json parse_ordered_json(std::string_view text, const std::string& source, JsonOrigin origin) {
  JsonText whole(text, source, origin);
  return JsonReader<ordered_json>(&whole, DuplicateKeys::kLastWins).document();
}

json json_or_null(std::string_view text) {
  try {
    return parse_json(text, "");
  } catch (const Error&) {
    return nullptr;
  }
}

json parse_json_object(std::string_view text, const std::string& source, DuplicateKeys duplicates, JsonOrigin origin) {
  json value = parse_json(text, source, duplicates, origin);
  if (!value.is_object()) throw_error(ExitCode::kBadInput, source, "holds " + shown(value) + ", not a JSON object");
  return value;
}

std::string shown(const json& value) {
  if (value.is_number_float() && std::isinf(value.get<double>())) return value > 0 ? "1e999" : "-1e999";
  return printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

const json* JsonFields::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::refuse(const char* key, const std::string& why, const std::string& hint) const {
  const json* value = find(key);
  throw_error(ExitCode::kBadInput, source_,
              str(label(key), " ", value == nullptr ? std::string("is missing") : shown(*value) + " " + why), hint);
}

int64_t JsonFields::integer(const char* key, int64_t min, int64_t max) const {
  const json* value = find(key);
  const std::string range = str("must be a whole number from ", min, " to ", max);
  if (value == nullptr) throw_error(ExitCode::kBadInput, source_, label(key) + " is missing");
  if (!value->is_number()) refuse(key, range);
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) refuse(key, range);
  if (value->is_number_float()) {  // 8192.0 is a whole number too
    const double real = value->get<double>();
    if (real != std::floor(real) || !(real >= -0x1p63 && real < 0x1p63)) refuse(key, range);
  }
  const int64_t whole = value->get<int64_t>();
  if (whole < min || whole > max) refuse(key, range);
  return whole;
}

int64_t JsonFields::integer_or(const char* key, int64_t min, int64_t max, int64_t fallback) const {
  return has(key) ? integer(key, min, max) : fallback;
}

double JsonFields::number(const char* key, double min, double max) const {
  const json* value = find(key);
  if (value == nullptr) throw_error(ExitCode::kBadInput, source_, label(key) + " is missing");
  if (!value->is_number()) refuse(key, "must be a number");
  const double real = value->get<double>();
  if (!(real >= min && real <= max)) refuse(key, str("must be from ", min, " to ", max));
  return real;
}

double JsonFields::number_or(const char* key, double min, double max, double fallback) const {
  return has(key) ? number(key, min, max) : fallback;
}

bool JsonFields::boolean_or(const char* key, bool fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, "must be true or false");
  return value->get<bool>();
}

std::string JsonFields::string_or(const char* key, const std::string& fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) refuse(key, "must be a string");
  return value->get<std::string>();
}

}  // namespace headrace
