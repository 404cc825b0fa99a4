// Files that a request holds: OpenAI's parts of the types "file" and "input_file". They become text by the converters
// of document.h. Of all requests one file is converted at a time. Included by .cc files only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/json_file.h"
#include "runtime/requests/request.h"

namespace headrace {

struct FilePart {
  std::string name, text;
};

// The files of one request. Thread: one.
class RequestFiles {
 public:
  explicit RequestFiles(const FileRules& rules)
      : rules_(rules), bytes_left_(rules.text_bytes), seconds_left_(rules.convert_seconds) {}

  // {"filename", "file_data": "data:application/pdf;base64,..."}; the file's kind is found by its bytes and its name.
  // Throws Error(kBadInput) that names the file, or the field `field` if the part is not such an object or there are
  // too many; ConverterBusy; Error(kInterrupted).
  FilePart read(const JsonFields& body, const char* field, const nlohmann::json& file);

 private:
  std::string converted(const std::string& name, std::string content);

  const FileRules rules_;
  uint64_t bytes_left_;
  double seconds_left_;
  int files_ = 0;
};

// The text of a request for that alone, as the server's page sends it: {"text"} as JSON. `source`: for errors.
std::string file_text_json(const std::string& body, const std::string& source, const FileRules& rules);

}  // namespace headrace
