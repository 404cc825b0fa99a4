// A JSON value with its path in the file, for the depth of tokenizer.json: errors name the file, the path and the value
// found. (For flat objects with ranges see JsonFields in runtime/base/json_file.h.) Internal to runtime/text. Pure
// functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace headrace {

using Json = nlohmann::json;

// One value and its path: "tokenizer.json", "model.merges[3]".
class JsonField {
 public:
  JsonField(const Json& value, std::string source, std::string path = "")
      : value_(&value), source_(std::move(source)), path_(std::move(path)) {}

  const Json& json() const { return *value_; }
  const std::string& path() const { return path_; }
  const std::string& source() const { return source_; }
  bool is_null() const { return value_->is_null(); }
  [[noreturn]] void refuse(const std::string& what) const;  // "tokenizer.json: model.type …"

  bool has(const char* key) const;      // present and not null
  JsonField at(const char* key) const;  // Error if absent, or if this is not an object
  JsonField item(size_t index) const;   // of an array
  size_t array_size() const;            // Error if this is not an array
  const std::string& string() const;    // Error if this is not a string
  bool boolean_or(const char* key, bool otherwise) const;
  std::string string_or(const char* key, const std::string& otherwise) const;
  int64_t integer() const;  // Error if this is not an integer

 private:
  [[noreturn]] void wrong_type(const char* wanted) const;
  const Json* value_;
  std::string source_, path_;
};

}  // namespace headrace
