#include "runtime/text/json_fields.h"

#include "cache/base.h"

namespace headrace {

namespace {

constexpr int kMaxDepth = 64;

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
      if (++depth > kMaxDepth)
        throw_error(ExitCode::kBadInput, source, str("nested deeper than ", kMaxDepth, " levels at byte ", i));
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& source) {
  if (text.empty()) throw_error(ExitCode::kBadInput, source, "is empty");
  check_depth(text, source);
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw_error(ExitCode::kBadInput, source, str("is not valid JSON: error at byte ", error.byte, " of ", text.size()),
                "the file may be truncated: download it again");
  } catch (const Json::exception& error) {
    throw_error(ExitCode::kBadInput, source, str("is not valid JSON: ", error.what()));
  }
}

void JsonField::refuse(const std::string& what) const {
  throw_error(ExitCode::kBadInput, source_, str(path_.empty() ? "the file" : path_, " ", what));
}

void JsonField::wrong_type(const char* wanted) const {
  std::string shown = value_->dump(-1, ' ', false, Json::error_handler_t::replace);
  if (shown.size() > 60) shown.replace(57, std::string::npos, "...");
  refuse(str("is ", shown, ", not ", wanted));
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
