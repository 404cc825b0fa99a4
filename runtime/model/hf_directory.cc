#include "runtime/model/hf_directory.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/model/convert.h"
#include "runtime/model/end_ids.h"
#include "runtime/model/json_file.h"
#include "runtime/model/mapped_file.h"
#include "runtime/model/safetensors.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20, kMaxTokenizerBytes = uint64_t{1} << 30;

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Which stored types can be read; the others are listed only.
bool readable(const std::string& stored, DType* type) {
  if (stored == "F32") return *type = DType::kF32, true;
  if (stored == "F16") return *type = DType::kF16, true;
  if (stored == "BF16") return *type = DType::kBF16, true;
  return false;
}

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
  void release_pages(const TensorInfo& tensor) const override;
  DType natural_dtype() const override;
  Tokenizer load_tokenizer() const override;
  std::string chat_template() const override;

 private:
  struct Place {
    size_t shard = 0;
    uint64_t begin = 0, bytes = 0;
  };
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void read_generation_config();
  void open_single(const std::string& name);
  void open_shards(const std::string& index);
  // Maps a file and adds its tensors: those that are in `wanted`, which it takes out of there, or all if it is null.
  void open_shard(const std::string& name, std::set<std::string>* wanted, std::vector<TensorInfo>* tensors);

  std::vector<MappedFile> shards_;
  std::vector<Place> places_;  // beside tensors()
};

HfDirectory::HfDirectory(const std::string& directory) {
  path_ = directory;
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  format_ = "safetensors";
  if (!exists(file("config.json")))
    throw_error(ExitCode::kBadInput, path_, "is a directory without config.json", hint_of_ggufs(path_));
  config_ = parse_config_json(read_small_file(file("config.json"), kMaxConfigBytes), file("config.json"));
  read_generation_config();
  if (exists(file("model.safetensors"))) {
    open_single("model.safetensors");
  } else if (exists(file("model.safetensors.index.json"))) {
    open_shards("model.safetensors.index.json");
  } else {
    throw_error(ExitCode::kBadInput, path_, "has neither model.safetensors nor model.safetensors.index.json",
                exists(file("pytorch_model.bin")) || exists(file("pytorch_model.bin.index.json"))
                    ? "its weights are PyTorch pickles: convert them to safetensors"
                    : "give a directory with safetensors weights, or a GGUF file");
  }
}

void HfDirectory::read_generation_config() {
  const std::string source = file("generation_config.json");
  if (!exists(source)) return;
  const json object = parse_json_object(read_small_file(source, kMaxConfigBytes), source);
  append_end_ids(JsonFields(object, source), config_.vocab, &config_.end_ids);
}

void HfDirectory::open_single(const std::string& name) {
  std::vector<TensorInfo> tensors;
  open_shard(name, nullptr, &tensors);
  set_tensors(std::move(tensors));
}

void HfDirectory::open_shards(const std::string& index) {
  const std::string source = file(index);
  const json object = parse_json_object(read_small_file(source, kMaxIndexBytes), source, DuplicateKeys::kRefuse);
  const auto map = object.find("weight_map");
  if (map == object.end() || !map->is_object()) throw_error(ExitCode::kBadInput, source, "weight_map is missing");
  std::map<std::string, std::set<std::string>> tensors_of;  // in order of name, as the shards are numbered
  for (const auto& [tensor, shard] : map->items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string("/\\\0", 3)) != std::string::npos)
      throw_error(ExitCode::kBadInput, source,
                  str("tensor \"", printable(tensor), "\" is mapped to ", shown(shard), ", which is not a file name"));
    tensors_of[name].insert(tensor);
  }
  std::vector<TensorInfo> tensors;
  for (auto& [name, wanted] : tensors_of) {
    if (!exists(file(name)))
      throw_error(ExitCode::kBadInput, source, str("names the shard ", printable(name), ", which is not there"));
    open_shard(name, &wanted, &tensors);
    if (!wanted.empty())
      throw_error(ExitCode::kBadInput, file(name),
                  str("lacks the tensor \"", printable(*wanted.begin()), "\" that ", index, " says it holds"));
  }
  set_tensors(std::move(tensors));
}

void HfDirectory::open_shard(const std::string& name, std::set<std::string>* wanted, std::vector<TensorInfo>* tensors) {
  MappedFile shard(file(name));
  for (SafetensorsEntry& entry : parse_safetensors(shard.bytes(), shard.path())) {
    if (wanted != nullptr && wanted->erase(entry.name) == 0) continue;
    places_.push_back({shards_.size(), entry.begin, entry.bytes});
    tensors->push_back({std::move(entry.name), std::move(entry.shape), std::move(entry.dtype), entry.bytes});
  }
  shards_.push_back(std::move(shard));
}

void HfDirectory::read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type, void* dst) const {
  CHECK(0 <= row_begin && row_begin <= row_end && row_end <= tensor.rows(), tensor.name, " rows ", row_begin, " to ",
        row_end, " of ", tensor.rows());
  const Place& place = places_[index_of(tensor)];
  DType stored = DType::kF32;
  if (!readable(tensor.stored_type, &stored))
    throw_error(ExitCode::kBadInput, shards_[place.shard].path(),
                str("tensor \"", printable(tensor.name), "\" is stored as ", tensor.stored_type,
                    ", which cannot be read as weights (F32, F16 and BF16 can)"));
  const uint64_t row_bytes = static_cast<uint64_t>(tensor.cols()) * dtype_bytes(stored);
  const char* source = shards_[place.shard].bytes().data() + place.begin + static_cast<uint64_t>(row_begin) * row_bytes;
  convert_elements(stored, source, type, dst, (row_end - row_begin) * tensor.cols());
}

void HfDirectory::release_pages(const TensorInfo& tensor) const {
  const Place& place = places_[index_of(tensor)];
  shards_[place.shard].release(place.begin, place.bytes);
}

DType HfDirectory::natural_dtype() const {
  uint64_t elements[3] = {};
  for (const TensorInfo& tensor : tensors())
    if (DType type; readable(tensor.stored_type, &type))
      elements[static_cast<size_t>(type)] += tensor.stored_bytes / dtype_bytes(type);
  return static_cast<DType>(std::max_element(elements, elements + 3) - elements);
}

Tokenizer HfDirectory::load_tokenizer() const {
  const std::string source = file("tokenizer.json");
  if (!exists(source))
    throw_error(ExitCode::kBadInput, source, "is not there",
                exists(file("tokenizer.model"))
                    ? "only tokenizer.model is: save the tokenizer again with transformers' fast tokenizer"
                    : "a model directory needs its tokenizer.json");
  return Tokenizer::from_json(read_small_file(source, kMaxTokenizerBytes), source);
}

std::string HfDirectory::chat_template() const {
  if (exists(file("chat_template.jinja"))) return read_small_file(file("chat_template.jinja"), kMaxConfigBytes);
  const std::string source = file("tokenizer_config.json");
  if (!exists(source)) return "";
  const json object = parse_json_object(read_small_file(source, kMaxConfigBytes), source);
  const JsonFields fields(object, source);
  const json* value = fields.find("chat_template");
  if (value == nullptr) return "";
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) fields.refuse("chat_template", "must be a string or a list of named templates");
  for (const json& item : *value)
    if (item.is_object() && item.value("name", json()) == "default" && item.value("template", json()).is_string())
      return item.at("template").get<std::string>();
  return "";
}

}  // namespace

std::unique_ptr<Checkpoint> open_hf_directory(const std::string& directory) {
  return std::make_unique<HfDirectory>(directory);
}

}  // namespace headrace
