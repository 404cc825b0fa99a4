// Files that a request holds: OpenAI's parts of the types "file" and "input_file". They become text by the converters
// of document.h, with their limits, one at a time. Thread: any. Included by .cc files only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/json_file.h"

namespace headrace {

struct FilePart {
  std::string name, text;
};

// {"filename", "file_data": "data:application/pdf;base64,..."}; the file's kind is found by its bytes and its name.
// Throws Error(kBadInput) that names the file, or the field `field` if the part is not such an object.
FilePart file_part(const JsonFields& body, const char* field, const nlohmann::json& file);

// The same of a request for the text alone, as the server's page sends it: {"text"} as JSON. `source`: for errors.
std::string file_text_json(const std::string& body, const std::string& source);

}  // namespace headrace
