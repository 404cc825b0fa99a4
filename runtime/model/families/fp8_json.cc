#include "runtime/model/families/fp8_json.h"

#include <string>

#include "cache/base.h"
#include "runtime/base/input_file.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr int64_t kMaxBlock = 1 << 20;

[[noreturn]] void refuse(const JsonFields& config, const std::string& what) {
  throw_error(ExitCode::kBadInput, config.source(), str("quantization_config ", what, " is not supported"),
              "give the bf16, f16 or f32 directory of this model, one in fp8 with weight_block_size, or a GGUF file");
}

}  // namespace

void refuse_mxfp4(const JsonFields& config) {
  const json* const object = config.find("quantization_config");
  if (object != nullptr && object->is_object() && object->value("quant_method", json()) == "mxfp4")
    refuse(config, "\"mxfp4\" of this family");
}

std::optional<Fp8Blocks> fp8_blocks(const JsonFields& config) {
  const json* const object = config.find("quantization_config");
  if (object == nullptr) return std::nullopt;
  const auto method = object->find("quant_method");
  if (!object->is_object() || method == object->end()) refuse(config, shown(*object));
  if (*method == "mxfp4") return std::nullopt;  // of experts; whether the family has them so, its reader says
  if (*method != "fp8") refuse(config, shown(*method));
  const JsonFields fields(*object, config.source(), "quantization_config.");
  if (const std::string format = fields.string_or("fmt", "e4m3"); format != "e4m3")
    refuse(config, str("\"fp8\" with fmt \"", printable(format), "\""));
  if (const std::string scheme = fields.string_or("activation_scheme", "dynamic"); scheme != "dynamic")
    refuse(config, str("\"fp8\" with activation_scheme \"", printable(scheme), "\""));
  const json* const block = fields.find("weight_block_size");
  if (block == nullptr) refuse(config, "\"fp8\" without weight_block_size (one scale for a whole matrix)");
  Fp8Blocks blocks;
  const auto size = [&](size_t i) {
    const json& value = (*block)[i];
    if (!value.is_number_integer() || value < 1 || value > kMaxBlock)
      fields.refuse("weight_block_size", "must be two sizes of at least 1");
    return value.get<int64_t>();
  };
  if (!block->is_array() || block->size() != 2) fields.refuse("weight_block_size", "must be two sizes of at least 1");
  blocks.rows = size(0);
  blocks.cols = size(1);
  return blocks;
}

}  // namespace headrace
