#include "runtime/requests/file_part.h"

#include <optional>
#include <string_view>

#include "cache/base.h"
#include "offload/host/thread_annotations.h"
#include "runtime/base/base64.h"
#include "runtime/requests/fields.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxFileText = 16 * kMiB;  // some 4M tokens: a small file may become a long text

std::string member(const json& file, const char* key) {
  const json value = file.value(key, json());
  return value.is_string() ? value.get<std::string>() : "";
}

std::string content_of(const std::string& name, std::string_view data) {
  if (data.starts_with("data:")) {
    const size_t comma = data.find(',');
    const std::string_view head = data.substr(0, std::min(comma, data.size()));
    if (comma == data.npos || !head.ends_with(";base64"))
      throw_error(ExitCode::kBadInput, name, "has a data URL that is not in base64", "data:TYPE;base64,...");
    data.remove_prefix(comma + 1);
  }
  std::optional<std::string> content = decode_base64(data);
  if (!content) throw_error(ExitCode::kBadInput, name, "has file_data that is not base64");
  return *std::move(content);
}

}  // namespace

FilePart file_part(const JsonFields& body, const char* field, const json& file) {
  if (!file.is_object()) body.refuse(field, "has a file that is not an object");
  const std::string given = member(file, "filename"), name = given.empty() ? "file" : printable(given);
  const std::string data = member(file, "file_data");
  if (data.empty()) {
    const char* const instead = !member(file, "file_id").empty()    ? "by file_id: this program keeps no files"
                                : !member(file, "file_url").empty() ? "by file_url: this program fetches nothing"
                                                                    : "without file_data";
    body.refuse(field, str("has a file ", instead, ". Send its bytes: \"file_data\": \"data:TYPE;base64,...\""));
  }
  static Mutex converting;  // a converter may take gigabytes
  const MutexLock one_at_a_time(converting);
  return {.name = name, .text = text_of_document(name, content_of(name, data), {.limit = {.bytes = kMaxFileText}})};
}

std::string file_text_json(const std::string& body, const std::string& source) {
  const json object = parse_json_object(body, source, DuplicateKeys::kRefuse, JsonOrigin::kClient);
  const JsonFields fields(object, source);
  for (const auto& item : object.items()) {
    if (item.key() != "filename" && item.key() != "file_data")
      fields.refuse(item.key().c_str(), "is not supported: the fields are filename and file_data");
  }
  return json({{"text", file_part(fields, "file_data", object).text}}).dump();
}

}  // namespace headrace
