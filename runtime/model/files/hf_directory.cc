#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "runtime/base/end_ids.h"
#include "runtime/base/file_hints.h"
#include "runtime/base/input_file.h"
#include "runtime/base/json_file.h"
#include "runtime/model/convert.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/files/mxfp4.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/files/tensor_files.h"
#include "runtime/model/files/tensor_parts.h"
#include "runtime/model/gguf/dequantize.h"

namespace headrace {
namespace {

using nlohmann::json;

// A directory of GGUF files is a common slip: the hint names them.
std::string hint_of_ggufs(const std::string& directory) {
  std::string names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored))
    if (entry.path().extension() == ".gguf") names += " " + entry.path().filename().string();
  return names.empty() ? "give a Hugging Face directory, or a .gguf file" : "give one of its GGUF files:" + names;
}

class HfDirectory final : public Checkpoint {
 public:
  explicit HfDirectory(const std::string& directory);
  void read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type, void* dst) const override;
  void read_blocks(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, void* dst) const override;
  ByteRange stored_range(const TensorInfo& tensor) const override;
  std::vector<FileStamp> files() const override { return files_.stamps(); }
  DType natural_dtype() const override { return files_.natural_dtype(); }
  bool has_tokenizer() const override { return is_there(file("tokenizer.json")); }
  Tokenizer load_tokenizer() const override;
  std::string chat_template() const override;

 private:
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void read_elements(const TensorPart& part, int64_t first, int64_t count, DType type, void* dst) const;
  void read_apart(const TensorPart& part, int64_t row_begin, int64_t row_end, DType type, char* dst) const;
  json config_object(const char* name) const;  // empty if the file is absent
  SpecialNames special_names() const;
  void read_generation_config();

  TensorFiles files_;
  std::vector<TensorPart> parts_;  // beside tensors()
};

HfDirectory::HfDirectory(const std::string& directory) {
  path_ = directory;
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  if (!is_there(file("config.json")))
    throw_error(ExitCode::kBadInput, path_, "is a directory without config.json", hint_of_ggufs(path_));
  JsonModel model = parse_model_json(read_small_file(file("config.json"), kMaxConfigBytes), file("config.json"));
  config_ = std::move(model.config);
  read_generation_config();
  files_ = TensorFiles(path_, model.fp8);
  format_ = files_.format();
  parts_ = decoder_parts(config_, files_.tensors(), path_, {.json = model.form});
  std::vector<TensorInfo> tensors;
  for (const TensorPart& part : parts_) tensors.push_back(part.tensor);
  set_tensors(std::move(tensors));
  if (find("mtp.fc.weight") == nullptr) config_.mtp.reset();  // transformers saves a model without its block
  if (config_.mtp) config_.mtp->own_norm = find("mtp.norm.weight") != nullptr;
  // These say "tied" by default, and yet have a head, which counts.
  if (config_.images && find("lm_head.weight") != nullptr) config_.tied_head = false;
}

ByteRange HfDirectory::stored_range(const TensorInfo& tensor) const {
  const TensorPart& part = parts_[index_of(tensor)];
  const ByteRange whole = files_.range(part.stored);
  if (part.order.stride > part.order.head_dim || !part.places.as_stored()) {  // others' are between
    const uint64_t bytes = whole.bytes / static_cast<uint64_t>(part.runs);
    return {whole.source, whole.begin + static_cast<uint64_t>(part.run) * bytes, bytes};
  }
  const uint64_t row_bytes = tensor.stored_bytes / static_cast<uint64_t>(std::max<int64_t>(1, tensor.rows()));
  return {whole.source, whole.begin + static_cast<uint64_t>(part.first_row) * row_bytes, tensor.stored_bytes};
}

void HfDirectory::read_generation_config() {
  const json object = config_object("generation_config.json");
  append_end_ids(JsonFields(object, file("generation_config.json")), config_.vocab, &config_.end_ids);
}

void HfDirectory::read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type, void* dst) const {
  check_rows(tensor, row_begin, row_end);
  const TensorPart& part = parts_[index_of(tensor)];
  if (part.scales) {
    const GgmlType& blocks = *find_ggml_type(kGgmlMxfp4);
    std::vector<char> rows(weight_bytes(WeightType::kMXFP4, row_end - row_begin, tensor.cols()));
    read_blocks(tensor, row_begin, row_end, rows.data());
    return dequantize(blocks, rows.data(), type, dst, (row_end - row_begin) * tensor.cols());
  }
  if (!part.places.as_stored()) return read_apart(part, row_begin, row_end, type, static_cast<char*>(dst));
  if (part.order.as_stored())
    return read_elements(part, (part.first_row + row_begin) * tensor.cols(), (row_end - row_begin) * tensor.cols(),
                         type, dst);
  const bool vector = tensor.shape.size() == 1;
  const int64_t cols = vector ? 1 : tensor.cols(), begin = vector ? 0 : row_begin,
                end = vector ? (row_end - row_begin) * tensor.cols() : row_end;
  read_in_order(part.order, begin, end, static_cast<size_t>(cols) * dtype_bytes(type), static_cast<char*>(dst),
                [&](int64_t first, char* head) {
                  read_elements(part, (part.first_row + first) * cols, part.order.head_dim * cols, type, head);
                });
}

// Some rows at a time, with those between them, of gate or of up.
void HfDirectory::read_blocks(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, void* dst) const {
  constexpr int64_t kAtOnce = 64;
  check_rows(tensor, row_begin, row_end);
  const TensorPart& part = parts_[index_of(tensor)];
  CHECK(part.scales.has_value(), tensor.name);
  const int64_t groups = tensor.cols() / kMxfp4Group, apart = part.places.rows_apart;
  const ByteRange values = files_.range(part.stored), scales = files_.range(*part.scales);
  const auto read = [&](const ByteRange& from, int64_t row, int64_t rows, int64_t row_bytes) {
    std::vector<uint8_t> bytes(static_cast<size_t>(((rows - 1) * apart + 1) * row_bytes));
    from.source->read(from.begin + static_cast<uint64_t>((part.places.first + row * apart) * row_bytes), bytes.data(),
                      bytes.size());
    return bytes;
  };
  auto* to = static_cast<uint8_t*>(dst);
  for (int64_t row = row_begin; row < row_end; row += kAtOnce) {
    const int64_t rows = std::min(kAtOnce, row_end - row);
    const std::vector<uint8_t> some = read(values, row, rows, groups * kMxfp4GroupBytes),
                               some_scales = read(scales, row, rows, groups);
    for (int64_t i = 0; i < rows; ++i, to += groups * kMxfp4BlockBytes)
      join_mxfp4(some.data() + i * apart * groups * kMxfp4GroupBytes, some_scales.data() + i * apart * groups, groups,
                 to);
  }
}

// Elements of the stored tensor, as the decoder's values.
void HfDirectory::read_elements(const TensorPart& part, int64_t first, int64_t count, DType type, void* dst) const {
  if (part.as == StoredAs::kItself) return files_.read(part.stored, first, count, type, dst);
  std::vector<float> values(static_cast<size_t>(count));
  files_.read(part.stored, first, count, DType::kF32, values.data());
  for (float& value : values) value = part.as == StoredAs::kLessOne ? value + 1.0f : -std::exp(value);
  convert_elements(DType::kF32, reinterpret_cast<const char*>(values.data()), type, dst, count);
}

// Run after run of the stored tensor: of each column, or, where a row's elements are nearer to each other, of each row.
void HfDirectory::read_apart(const TensorPart& part, int64_t row_begin, int64_t row_end, DType type, char* dst) const {
  const ElementPlaces& at = part.places;
  const int64_t cols = part.tensor.cols(), rows = row_end - row_begin;
  if (rows == 0) return;
  const bool columns = at.rows_apart > 0 && at.rows_apart < at.cols_apart;
  const int64_t runs = columns ? cols : rows, count = columns ? rows : cols;
  const int64_t apart = columns ? at.rows_apart : at.cols_apart, next = columns ? at.cols_apart : at.rows_apart;
  const int64_t length = (count - 1) * apart + 1;
  const size_t bytes = dtype_bytes(type);
  std::vector<char> run(static_cast<size_t>(length) * bytes);
  for (int64_t i = 0; i < runs; ++i) {
    read_elements(part, at.first + row_begin * at.rows_apart + i * next, length, type, run.data());
    for (int64_t j = 0; j < count; ++j) {
      const int64_t to = columns ? j * cols + i : i * cols + j;
      std::memcpy(dst + static_cast<size_t>(to) * bytes, run.data() + static_cast<size_t>(j * apart) * bytes, bytes);
    }
  }
}

Tokenizer HfDirectory::load_tokenizer() const {
  const std::string source = file("tokenizer.json");
  if (!is_there(source))
    throw_error(ExitCode::kBadInput, source, "does not exist",
                is_there(file("tokenizer.model"))
                    ? "only tokenizer.model is: save the tokenizer again with transformers' fast tokenizer"
                    : "a model directory needs its tokenizer.json");
  return Tokenizer::from_json(read_small_file(source, kMaxTokenizerBytes), source, special_names());
}

json HfDirectory::config_object(const char* name) const {
  if (!is_there(file(name))) return json::object();
  return parse_json_object(read_small_file(file(name), kMaxConfigBytes), file(name));
}

// As transformers 5 has them: members of tokenizer_config.json whose names end in _token, and those of its objects of
// further names. Old directories, without added_tokens_decoder, have them in special_tokens_map.json, which wins.
SpecialNames HfDirectory::special_names() const {
  const json config = config_object("tokenizer_config.json");
  json names = json::object();
  const auto add = [&](const json& object, bool all) {
    for (const auto& [name, value] : object.items()) {
      const json& text = value.is_object() && value.contains("content") ? value["content"] : value;
      if (text.is_string() && (all || name.ends_with("_token"))) names[name] = text;
    }
  };
  add(config, false);
  for (const char* key : {"extra_special_tokens", "model_specific_special_tokens"})
    if (const auto more = config.find(key); more != config.end() && more->is_object()) add(*more, true);
  if (!config.contains("added_tokens_decoder")) add(config_object("special_tokens_map.json"), false);
  SpecialNames out;
  for (const auto& [name, text] : names.items()) out.emplace_back(name, text.get<std::string>());
  return out;
}

// A template, or the default one of a list or object of named templates. Empty: there is none.
std::string template_in(const json& object, const std::string& source) {
  const JsonFields fields(object, source);
  const json* value = fields.find("chat_template");
  if (value == nullptr) return "";
  if (value->is_string()) return value->get<std::string>();
  std::string names;
  const auto is_default = [&](const json& name) {
    names += " " + shown(name);
    return name == "default";
  };
  if (value->is_object()) {
    for (const auto& [name, text] : value->items())
      if (is_default(name) && text.is_string()) return text.get<std::string>();
  } else if (value->is_array()) {
    for (const json& item : *value)
      if (item.is_object() && is_default(item.value("name", json())) && item.value("template", json()).is_string())
        return item.at("template").get<std::string>();
  } else {
    fields.refuse("chat_template", "must be a string or a list of named templates");
  }
  throw_error(ExitCode::kBadInput, source, str("chat_template has no template named \"default\", but", names),
              "copy the one that you want to a file, and give it as --chat-template-file");
}

std::string HfDirectory::chat_template() const {
  if (is_there(file("chat_template.jinja"))) return read_small_file(file("chat_template.jinja"), kMaxConfigBytes);
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {  // the second: models with a processor
    std::string text = template_in(config_object(name), file(name));
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace

std::unique_ptr<Checkpoint> open_hf_directory(const std::string& directory) {
  return std::make_unique<HfDirectory>(directory);
}

}  // namespace headrace
