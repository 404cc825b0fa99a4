#include "runtime/requests/file_part.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "cache/base.h"
#include "offload/host/thread_annotations.h"
#include "runtime/base/base64.h"
#include "runtime/base/input_file.h"
#include "runtime/requests/fields.h"
#include "runtime/text/document.h"
#include "runtime/text/document_format.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr int kMaxFiles = 16;

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

// A name for errors, with the suffix, which tells the format, even where the name is cut.
std::string name_in_errors(const std::string& name) {
  std::string text = printable(name);
  const std::string suffix = printable(std::filesystem::path(name).extension().string());
  return text.ends_with(suffix) ? text : text + suffix;
}

// The only one that converts, because a converter may take gigabytes.
class ConverterTurn {
 public:
  ConverterTurn(const std::string& name, bool waits) {
    const MutexLock lock(mutex_);
    while (taken_ && waits) left_.wait(mutex_);
    if (taken_) throw ConverterBusy(name);
    taken_ = true;
  }
  ~ConverterTurn() {
    const MutexLock lock(mutex_);
    taken_ = false;
    left_.notify_one();
  }
  ConverterTurn(const ConverterTurn&) = delete;
  ConverterTurn& operator=(const ConverterTurn&) = delete;

 private:
  static inline Mutex mutex_;
  static inline CondVar left_;
  static inline bool taken_ GUARDED_BY(mutex_) = false;
};

}  // namespace

std::string RequestFiles::converted(const std::string& name, std::string content) {
  using Clock = std::chrono::steady_clock;
  const ConverterTurn one_at_a_time(name, rules_.waits);
  const Clock::time_point began = Clock::now();
  std::string text = text_of_document(name, std::move(content),
                                      {.limit = {.bytes = rules_.text_bytes},
                                       .interrupt = rules_.interrupt,
                                       .convert_seconds = std::max(seconds_left_, 0.0)});
  seconds_left_ -= std::chrono::duration<double>(Clock::now() - began).count();
  return text;
}

FilePart RequestFiles::read(const JsonFields& body, const char* field, const json& file) {
  if (!file.is_object()) body.refuse(field, "has a file that is not an object");
  if (++files_ > kMaxFiles) body.refuse(field, str("has more than ", kMaxFiles, " files"));
  const std::string given = member(file, "filename");
  FilePart part = {.name = given.empty() ? "file" : given, .text = {}};
  const std::string data = member(file, "file_data");
  if (data.empty()) {
    const char* const instead = !member(file, "file_id").empty()    ? "by file_id: this program keeps no files"
                                : !member(file, "file_url").empty() ? "by file_url: this program fetches nothing"
                                                                    : "without file_data";
    body.refuse(field, str("has a file ", instead, ". Send its bytes: \"file_data\": \"data:TYPE;base64,...\""));
  }
  const std::string name = name_in_errors(part.name);
  std::string content = content_of(name, data);
  const std::string_view head = std::string_view(content).substr(0, kFormatHeadBytes);
  part.text = is_converted(document_format(part.name, head))
                  ? converted(name, std::move(content))
                  : text_of_document(name, std::move(content), {.limit = {.bytes = rules_.text_bytes}});
  if (part.text.size() > bytes_left_) {
    throw_error(ExitCode::kBadInput, name,
                str("has ", part.text.size(), " bytes of text: the files of a request may have ", rules_.text_bytes,
                    " together, and those before it leave ", bytes_left_));
  }
  bytes_left_ -= part.text.size();
  return part;
}

std::string file_text_json(const std::string& body, const std::string& source, const FileRules& rules) {
  const json object = parse_json_object(body, source, DuplicateKeys::kRefuse, JsonOrigin::kClient);
  const JsonFields fields(object, source);
  for (const auto& item : object.items()) {
    if (item.key() != "filename" && item.key() != "file_data")
      fields.refuse(item.key().c_str(), "is not supported: the fields are filename and file_data");
  }
  return json({{"text", RequestFiles(rules).read(fields, "file_data", object).text}}).dump();
}

}  // namespace headrace
