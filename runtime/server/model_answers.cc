#include "runtime/server/model_answers.h"

#include <ctime>
#include <filesystem>

#include "runtime/base/json_file.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

std::string model_name(const std::string& path) {
  std::filesystem::path name(path);
  if (!name.has_filename()) name = name.parent_path();
  return name.extension() == ".gguf" ? name.stem().string() : name.filename().string();
}

ordered_json model_json(const std::string& name, int64_t created, const Engine& engine) {
  return {{"id", name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "headrace"},
          {"meta",
           {{"n_ctx", engine.context_limit()},
            {"prefill_type", prefill_type_name(engine.prefills_in_int8(), engine.dtype())}}}};
}

std::string dumped(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

ModelAnswers::ModelAnswers(const Engine& engine)
    : engine_(engine), name_(model_name(engine.model_path())), created_(std::time(nullptr)) {}

std::string ModelAnswers::one() const { return dumped(model_json(name_, created_, engine_)); }

std::string ModelAnswers::list() const {
  return dumped({{"object", "list"}, {"data", ordered_json::array({model_json(name_, created_, engine_)})}});
}

std::string ModelAnswers::tokenize(const std::string& body) const {
  const std::string source = "request";
  const nlohmann::json object = parse_json_object(body, source, DuplicateKeys::kRefuse, JsonOrigin::kClient);
  const JsonFields fields(object, source);
  for (const auto& item : object.items()) {
    if (item.key() != "content" && item.key() != "add_special" && item.key() != "with_pieces") {
      fields.refuse(item.key().c_str(), "is not supported: the fields are content, add_special and with_pieces");
    }
  }
  if (!fields.has("content")) fields.refuse("content", "");
  const std::string content = fields.string_or("content", "");
  const bool with_pieces = fields.boolean_or("with_pieces", false);
  const AddBos bos = fields.boolean_or("add_special", false) ? AddBos::kYes : AddBos::kNo;
  std::string answer = R"({"tokens":[)";
  for (const int32_t id : engine_.tokenizer().encode(content, bos, SpecialTokens::kAsText)) {
    if (answer.back() != '[') answer += ',';
    if (with_pieces) {
      answer += dumped({{"id", id}, {"piece", engine_.tokenizer().decode({id})}});
    } else {
      answer += std::to_string(id);
    }
  }
  return answer + "]}";
}

}  // namespace headrace
