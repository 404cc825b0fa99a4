// JSON from untrusted files and clients: parsing in linear time with limits of depth and of values, and typed fields
// whose errors name the file, the key and the value. Pure functions over values; from any thread. Included by .cc files
// only, because nlohmann's header compiles slowly.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace headrace {

enum class DuplicateKeys { kLastWins, kRefuse };
// Of a client's JSON a lone surrogate ("\ud83d") becomes U+FFFD, and a number beyond the range of doubles is infinite:
// the error then names the field, or there is none. In a file both are errors.
enum class JsonOrigin { kFile, kClient };

constexpr int kMaxJsonDepth = 64;
constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;
constexpr uint64_t kMaxJsonValues = uint64_t{16} << 20, kMaxClientValues = uint64_t{1} << 20;

// Throw Error(kBadInput); the second also if the text is not an object.
nlohmann::json parse_json(std::string_view text, const std::string& source,
                          DuplicateKeys duplicates = DuplicateKeys::kLastWins, JsonOrigin origin = JsonOrigin::kFile);
nlohmann::json parse_json_object(std::string_view text, const std::string& source,
                                 DuplicateKeys duplicates = DuplicateKeys::kLastWins,
                                 JsonOrigin origin = JsonOrigin::kFile);
// With the members of objects in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& source,
                                          JsonOrigin origin = JsonOrigin::kFile);
// Null where the text is not JSON.
nlohmann::json json_or_null(std::string_view text);

// A value for an error message: its JSON text, truncated if long.
std::string shown(const nlohmann::json& value);

// A borrowed object with typed getters. A null value counts as absent.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, const std::string& source, std::string prefix = "")
      : object_(object), source_(source), prefix_(std::move(prefix)) {}

  bool has(const char* key) const { return find(key) != nullptr; }
  bool names(const char* key) const { return object_.contains(key); }  // present, possibly null
  const nlohmann::json* find(const char* key) const;                   // null if absent or null
  int64_t integer(const char* key, int64_t min, int64_t max) const;    // Error if absent
  int64_t integer_or(const char* key, int64_t min, int64_t max, int64_t fallback) const;
  double number(const char* key, double min, double max) const;  // Error if absent
  double number_or(const char* key, double min, double max, double fallback) const;
  bool boolean_or(const char* key, bool fallback) const;
  std::string string_or(const char* key, const std::string& fallback) const;

  const std::string& source() const { return source_; }
  std::string label(const char* key) const { return prefix_ + key; }  // "rope_scaling.factor"
  [[noreturn]] void refuse(const char* key, const std::string& why, const std::string& hint = "") const;

 private:
  const nlohmann::json& object_;
  const std::string& source_;
  std::string prefix_;
};

}  // namespace headrace
