#include "runtime/model/families/read_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/model/config_check.h"

namespace headrace {
namespace {

using nlohmann::json;

// In the order of the lists that errors print.
std::array<const Family*, 10> families() {
  return {&llama_family(),  &mistral_family(),  &phi3_family(),  &qwen_family(),   &qwen3moe_family(),
          &qwen35_family(), &seed_oss_family(), &gemma_family(), &gemma4_family(), &gptoss_family()};
}

bool contains(const std::vector<std::string_view>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string joined(const std::vector<std::string_view>& names) {
  std::string text;
  for (const std::string_view name : names) text += str(text.empty() ? "" : ", ", name);
  return text;
}

std::string supported_json() {
  std::vector<std::string_view> architectures, types;
  for (const Family* family : families()) {
    for (const JsonForm& form : family->json) {
      architectures.insert(architectures.end(), form.architectures.begin(), form.architectures.end());
      types.insert(types.end(), form.model_types.begin(), form.model_types.end());
    }
  }
  return str("supported: ", joined(architectures), " (model_type ", joined(types), ")");
}

const JsonForm* find_form(const std::vector<std::string_view> JsonForm::*names, std::string_view name) {
  for (const Family* family : families())
    for (const JsonForm& form : family->json)
      if (contains(form.*names, name)) return &form;
  return nullptr;
}

// ": it is a mixture of experts", for a model that a family knows of and does not take.
std::string reason_against(std::string_view name) {
  for (const Family* family : families())
    for (const RefusedModels& models : family->refused)
      if (contains(models.names, name)) return str(": it ", models.why);
  return "";
}

const JsonForm& json_form(const JsonFields& fields) {
  const JsonForm* by_architecture = nullptr;
  if (const json* list = fields.find("architectures")) {
    if (!list->is_array() || list->empty() || !list->front().is_string())
      fields.refuse("architectures", "must be a list of names", supported_json());
    const auto name = list->front().get<std::string>();
    by_architecture = find_form(&JsonForm::architectures, name);
    if (by_architecture == nullptr)
      fields.refuse("architectures", "is not supported" + reason_against(name), supported_json());
  }
  const std::string type = fields.string_or("model_type", "");
  const JsonForm* const by_type = find_form(&JsonForm::model_types, type);
  if (!type.empty() && by_type == nullptr)
    fields.refuse("model_type", "is not supported" + reason_against(type), supported_json());
  if (by_type == nullptr && by_architecture == nullptr)
    throw_error(ExitCode::kBadInput, fields.source(), "has neither architectures nor model_type", supported_json());
  if (by_type != nullptr && by_architecture != nullptr && by_type != by_architecture)
    fields.refuse("model_type", str("contradicts architectures ", shown(*fields.find("architectures"))));
  return by_type == nullptr ? *by_architecture : *by_type;
}

std::string supported_gguf() {
  std::string text;
  for (const Family* family : families())
    for (const GgufForm& form : family->gguf)
      text += str(text.empty() ? "supported: " : ", ", form.architecture,
                  form.also.empty() ? "" : str(" (also ", form.also, ")"));
  return text;
}

void read_end_ids(const GgufSource& source, ModelConfig* config) {
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    const int32_t id = source.fields.token_id(name);
    if (id >= config->vocab)
      throw_error(ExitCode::kBadInput, source.file.source,
                  str("tokenizer.ggml.", name, " is ", id, ", not in the vocabulary of ", config->vocab));
    if (id >= 0 && std::find(config->end_ids.begin(), config->end_ids.end(), id) == config->end_ids.end())
      config->end_ids.push_back(id);
  }
}

}  // namespace

JsonModel parse_model_json(std::string_view text, const std::string& source) {
  const json object = parse_json_object(text, source);
  const JsonFields fields(object, source);
  const JsonForm& form = json_form(fields);
  ModelConfig config;
  config.family = form.name;
  form.read(fields, &config);
  check_config(config, source);
  std::optional<Fp8Blocks> fp8 = fp8_blocks(fields);
  const json* const decoder = fields.find("text_config");
  if (!fp8 && decoder != nullptr && decoder->is_object())
    fp8 = fp8_blocks(JsonFields(*decoder, source, "text_config."));
  return {std::move(config), &form, fp8};
}

const GgufForm& gguf_form(const GgufFile& file) {
  const GgufFields fields(file);
  const std::string name = fields.string_or("general.architecture", "");
  for (const Family* family : families())
    for (const GgufForm& form : family->gguf)
      if (form.architecture == name) return form;
  if (name == "clip") {
    throw_error(ExitCode::kBadInput, file.source,
                "is an mmproj file (general.architecture \"clip\"): the part of a model that reads images, which this "
                "program does not use",
                "give the GGUF file of the model itself, which reads text without it");
  }
  fields.refuse("general.architecture", str("\"", printable(name), "\" is not supported", reason_against(name)),
                supported_gguf());
}

ModelConfig gguf_config(const GgufFile& file, const ByteSource& bytes) {
  const GgufForm& form = gguf_form(file);
  const GgufSource source = {file, bytes, GgufFields(file), form.architecture};
  ModelConfig config;
  config.family = form.architecture;
  form.read(source, &config);
  read_end_ids(source, &config);
  check_config(config, file.source);
  return config;
}

std::string decoder_name(std::string_view name, const GgufForm& form, int64_t layers) {
  if (name == "token_embd.weight") return "model.embed_tokens.weight";
  if (name == "output_norm.weight") return "model.norm.weight";
  if (name == "output.weight") return "lm_head.weight";
  for (const TensorName& tensor : form.tensors)
    if (tensor.whole && tensor.gguf == name) return std::string(tensor.decoder);
  const size_t dot = name.find('.', 4);
  if (name.substr(0, 4) != "blk." || dot == std::string_view::npos) return std::string(name);
  const std::string_view number = name.substr(4, dot - 4), rest = name.substr(dot + 1);
  int64_t layer = -1;
  std::from_chars(number.data(), number.data() + number.size(), layer);
  const std::string prefix =
      layer < layers ? str("model.layers.", number, ".") : str("mtp.layers.", layer - layers, ".");
  const size_t last = rest.rfind('.');
  const std::string_view part = rest.substr(0, last);
  for (const TensorName& tensor : form.tensors) {
    const bool fits = tensor.whole ? rest == tensor.gguf : last != std::string_view::npos && part == tensor.gguf;
    if (fits)
      return str(tensor.decoder.starts_with("mtp.") ? "" : prefix, tensor.decoder,
                 tensor.whole ? "" : rest.substr(last));
  }
  return std::string(name);
}

}  // namespace headrace
