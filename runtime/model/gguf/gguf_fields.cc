// Typed getters over a GGUF file's metadata.
#include <cmath>
#include <cstring>
#include <optional>

#include "cache/base.h"
#include "runtime/base/input_file.h"
#include "runtime/model/gguf/gguf.h"

namespace headrace {
namespace {

template <typename T>
T load(std::string_view bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

// A stored number as int64, if it is a whole one that fits.
std::optional<int64_t> whole(const GgufValue& value, uint64_t index) {
  switch (value.type) {
    case GgufType::kU8:
      return load<uint8_t>(value.bytes, index);
    case GgufType::kI8:
      return load<int8_t>(value.bytes, index);
    case GgufType::kU16:
      return load<uint16_t>(value.bytes, index);
    case GgufType::kI16:
      return load<int16_t>(value.bytes, index);
    case GgufType::kU32:
      return load<uint32_t>(value.bytes, index);
    case GgufType::kI32:
      return load<int32_t>(value.bytes, index);
    case GgufType::kI64:
      return load<int64_t>(value.bytes, index);
    case GgufType::kU64: {
      const uint64_t number = load<uint64_t>(value.bytes, index);
      if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(number);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> real(const GgufValue& value, uint64_t index) {
  if (value.type == GgufType::kF32) return load<float>(value.bytes, index);
  if (value.type == GgufType::kF64) return load<double>(value.bytes, index);
  if (const std::optional<int64_t> number = whole(value, index)) return static_cast<double>(*number);
  return std::nullopt;
}

std::string shown_value(const GgufValue& value) {
  if (value.is_array) return str("an array of ", value.count);
  if (value.type == GgufType::kString) return str("\"", printable(value.bytes), "\"");
  if (value.type == GgufType::kBool) return load<uint8_t>(value.bytes, 0) != 0 ? "true" : "false";
  if (value.type == GgufType::kU64) return str(load<uint64_t>(value.bytes, 0));
  if (const std::optional<int64_t> number = whole(value, 0)) return str(*number);
  return str(real(value, 0).value_or(0));
}

}  // namespace

void GgufFields::refuse(const std::string& key, const std::string& why, const std::string& hint) const {
  throw_error(ExitCode::kBadInput, file_.source, key + " " + why, hint);
}

const GgufValue* GgufFields::scalar(const std::string& key) const {
  const auto found = file_.metadata.find(key);
  if (found == file_.metadata.end()) return nullptr;
  if (found->second.is_array) refuse(key, "is " + shown_value(found->second) + "; one value is expected");
  return &found->second;
}

const GgufValue* GgufFields::array(const std::string& key) const {
  const auto found = file_.metadata.find(key);
  if (found == file_.metadata.end()) return nullptr;
  if (!found->second.is_array) refuse(key, "is " + shown_value(found->second) + "; an array is expected");
  return &found->second;
}

int64_t GgufFields::integer(const std::string& key, int64_t min, int64_t max) const {
  const GgufValue* value = scalar(key);
  if (value == nullptr) refuse(key, "is missing");
  const std::optional<int64_t> number = whole(*value, 0);
  if (!number || *number < min || *number > max)
    refuse(key, str("is ", shown_value(*value), "; a whole number from ", min, " to ", max, " is expected"));
  return *number;
}

int64_t GgufFields::integer_or(const std::string& key, int64_t min, int64_t max, int64_t fallback) const {
  return has(key) ? integer(key, min, max) : fallback;
}

double GgufFields::number_or(const std::string& key, double min, double max, double fallback) const {
  const GgufValue* value = scalar(key);
  if (value == nullptr) return fallback;
  const std::optional<double> number = real(*value, 0);
  if (!number || !(*number >= min && *number <= max))
    refuse(key, str("is ", shown_value(*value), "; a number from ", min, " to ", max, " is expected"));
  return *number;
}

bool GgufFields::boolean_or(const std::string& key, bool fallback) const {
  const GgufValue* value = scalar(key);
  if (value == nullptr) return fallback;
  if (value->type != GgufType::kBool) refuse(key, "is " + shown_value(*value) + "; true or false is expected");
  return load<uint8_t>(value->bytes, 0) != 0;
}

std::string GgufFields::string_or(const std::string& key, const std::string& fallback) const {
  const GgufValue* value = scalar(key);
  if (value == nullptr) return fallback;
  if (value->type != GgufType::kString) refuse(key, "is " + shown_value(*value) + "; a string is expected");
  return value->bytes;
}

std::vector<std::string> GgufFields::strings(const std::string& key) const {
  std::vector<std::string> out;
  const GgufValue* value = array(key);
  if (value == nullptr) return out;
  if (value->type != GgufType::kString) refuse(key, "is an array of numbers; strings are expected");
  out.reserve(value->count);
  uint64_t position = 0;  // lengths were checked when the file was parsed
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::string_view bytes = std::string_view(value->bytes).substr(position);
    const uint64_t length = load<uint64_t>(bytes, 0);
    out.emplace_back(bytes.substr(sizeof length, length));
    position += sizeof length + length;
  }
  return out;
}

std::vector<int32_t> GgufFields::integers(const std::string& key) const {
  std::vector<int32_t> out;
  const GgufValue* value = array(key);
  if (value == nullptr) return out;
  out.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> number = whole(*value, i);
    if (!number || *number < INT32_MIN || *number > INT32_MAX)
      refuse(key, str("holds a value that is not a 32-bit whole number at index ", i));
    out.push_back(static_cast<int32_t>(*number));
  }
  return out;
}

std::vector<float> GgufFields::numbers(const std::string& key) const {
  std::vector<float> out;
  const GgufValue* value = array(key);
  if (value == nullptr) return out;
  out.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<double> number = real(*value, i);
    if (!number || std::isnan(*number)) refuse(key, str("holds a value that is not a number at index ", i));
    out.push_back(static_cast<float>(*number));
  }
  return out;
}

std::vector<bool> GgufFields::booleans(const std::string& key) const {
  std::vector<bool> out;
  const GgufValue* value = array(key);
  if (value == nullptr) return out;
  if (value->type != GgufType::kBool) refuse(key, "is an array of other values; true and false are expected");
  for (uint64_t i = 0; i < value->count; ++i) out.push_back(load<uint8_t>(value->bytes, i) != 0);
  return out;
}

uint64_t GgufFields::array_size(const std::string& key) const {
  const GgufValue* value = array(key);
  return value == nullptr ? 0 : value->count;
}

int32_t GgufFields::token_id(const char* name) const {
  // Some writers store -1 as an unsigned number; any id out of the vocabulary's range means "none".
  const int64_t id = integer_or(std::string("tokenizer.ggml.") + name, INT32_MIN, UINT32_MAX, -1);
  return id < 0 || id > INT32_MAX ? -1 : static_cast<int32_t>(id);
}

}  // namespace headrace
