#include "runtime/base/json_file.h"

#include <cmath>
#include <set>
#include <vector>

#include "cache/base.h"
#include "runtime/base/input_file.h"

namespace headrace {
namespace {

using nlohmann::json;

// Checked before parsing, because the parser uses stack for each level. Brackets within strings do not count.
void check_depth(std::string_view text, const std::string& source) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth)
        throw_error(ExitCode::kBadInput, source,
                    str("JSON is nested deeper than ", kMaxJsonDepth, " levels, at byte ", i));
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

// Detects keys that occur twice in one object.
class KeyGuard {
 public:
  explicit KeyGuard(const std::string& source) : source_(source) {}

  bool operator()(int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys_.emplace_back();
    if (event == json::parse_event_t::object_end) keys_.pop_back();
    if (event == json::parse_event_t::key && !keys_.back().insert(value.get_ref<const std::string&>()).second)
      throw_error(ExitCode::kBadInput, source_, str("the key ", shown(value), " comes twice in one object"));
    return true;
  }

 private:
  const std::string& source_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

json parse_json(std::string_view text, const std::string& source, DuplicateKeys duplicates) {
  const auto refuse = [&](const std::string& why) {
    throw_error(ExitCode::kBadInput, source, "is not valid JSON: " + why, "it may be cut short");
  };
  if (text.empty()) refuse("it is empty");
  check_depth(text, source);
  json value;
  try {
    KeyGuard guard(source);
    value = duplicates == DuplicateKeys::kLastWins ? json::parse(text.begin(), text.end())
                                                   : json::parse(text.begin(), text.end(), std::ref(guard));
  } catch (const json::parse_error& error) {
    refuse(str("error at byte ", error.byte, " of ", text.size()));
  } catch (const json::exception& error) {
    refuse(printable(error.what()));
  }
  return value;
}

json parse_json_object(std::string_view text, const std::string& source, DuplicateKeys duplicates) {
  json value = parse_json(text, source, duplicates);
  if (!value.is_object()) throw_error(ExitCode::kBadInput, source, "holds " + shown(value) + ", not a JSON object");
  return value;
}

std::string shown(const json& value) { return printable(value.dump(-1, ' ', false, json::error_handler_t::replace)); }

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
    if (real != std::floor(real) || std::abs(real) > 0x1p53) refuse(key, range);
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
