#include "runtime/text/json_fields.h"

#include "cache/base.h"
#include "runtime/base/json_file.h"

namespace headrace {

void JsonField::refuse(const std::string& what) const {
  throw_error(ExitCode::kBadInput, source_, str(path_.empty() ? "the file" : path_, " ", what));
}

void JsonField::wrong_type(const char* wanted) const {
  std::string text = shown(*value_);
  if (text.size() > 60) text.replace(57, std::string::npos, "...");
  refuse(str("is ", text, ", not ", wanted));
}

bool JsonField::has(const char* key) const {
  if (!value_->is_object()) wrong_type("an object");
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

JsonField JsonField::at(const char* key) const {
  if (!has(key)) refuse(str("has no \"", key, "\""));
  return {(*value_)[key], source_, path_.empty() ? key : str(path_, ".", key)};
}

JsonField JsonField::item(size_t index) const { return {(*value_)[index], source_, str(path_, "[", index, "]")}; }

size_t JsonField::array_size() const {
  if (!value_->is_array()) wrong_type("an array");
  return value_->size();
}

const std::string& JsonField::string() const {
  if (!value_->is_string()) wrong_type("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonField::boolean_or(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const JsonField field = at(key);
  if (!field.json().is_boolean()) field.wrong_type("true or false");
  return field.json().get<bool>();
}

std::string JsonField::string_or(const char* key, const std::string& otherwise) const {
  return has(key) ? at(key).string() : otherwise;
}

int64_t JsonField::integer() const {
  if (!value_->is_number_integer()) wrong_type("an integer");
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX) wrong_type("a number of 63 bits");
  return value_->get<int64_t>();
}

}  // namespace headrace
