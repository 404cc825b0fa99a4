#include "runtime/model/families/windows.h"

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/model/config_check.h"

namespace headrace {
namespace {

std::vector<bool> all_but_each_nth(int64_t layers, int64_t pattern) {
  std::vector<bool> windows(static_cast<size_t>(layers), true);
  for (int64_t i = pattern - 1; i < layers; i += pattern) windows[static_cast<size_t>(i)] = false;
  return windows;
}

}  // namespace

std::vector<bool> read_windows(const JsonFields& fields, int64_t layers, int64_t pattern) {
  const nlohmann::json* const types = fields.find("layer_types");
  if (types == nullptr) {
    const char* const key =
        fields.has("_sliding_window_pattern") ? "_sliding_window_pattern" : "sliding_window_pattern";
    return all_but_each_nth(layers, fields.integer_or(key, 1, kMaxLayers, pattern));
  }
  if (!types->is_array()) fields.refuse("layer_types", "must be a list");
  std::vector<bool> windows(static_cast<size_t>(layers));
  if (types->size() != windows.size())
    throw_error(ExitCode::kBadInput, fields.source(),
                str(fields.label("layer_types"), " holds ", types->size(), " layers, but ",
                    fields.label("num_hidden_layers"), " is ", layers));
  for (size_t i = 0; i < windows.size(); ++i) {
    const nlohmann::json& type = (*types)[i];
    windows[i] = type == "sliding_attention";
    if (!windows[i] && type != "full_attention")
      throw_error(ExitCode::kBadInput, fields.source(),
                  str(fields.label("layer_types"), " holds ", shown(type), " for layer ", i,
                      "; \"sliding_attention\" and \"full_attention\" are supported"));
  }
  return windows;
}

std::vector<bool> read_windows(const GgufSource& source, int64_t layers, int64_t pattern) {
  const std::string key = source.key("attention.sliding_window_pattern");
  const auto found = source.file.metadata.find(key);
  if (found == source.file.metadata.end() || !found->second.is_array)
    return all_but_each_nth(layers, source.fields.integer_or(key, 1, kMaxLayers, pattern));
  const std::vector<bool> windows = source.fields.booleans(key);
  if (windows.size() != static_cast<size_t>(layers))
    source.fields.refuse(key,
                         str("holds ", windows.size(), " values, but ", source.key("block_count"), " is ", layers));
  return windows;
}

}  // namespace headrace
