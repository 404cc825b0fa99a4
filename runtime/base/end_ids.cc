#include "runtime/base/end_ids.h"

#include <algorithm>

#include "cache/base.h"

namespace headrace {

using nlohmann::json;

void append_end_ids(const JsonFields& fields, int64_t vocab, std::vector<int32_t>* out) {
  const json* value = fields.find("eos_token_id");
  if (value == nullptr) return;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    if (!id.is_number_integer() || id.is_number_unsigned() != (id >= 0) || id < 0 || id >= vocab)
      throw_error(ExitCode::kBadInput, fields.source(),
                  str("eos_token_id ", shown(id), " must be a whole number from 0 to ", vocab - 1));
    const int32_t token = id.get<int32_t>();
    if (std::find(out->begin(), out->end(), token) == out->end()) out->push_back(token);
  }
}

}  // namespace headrace
