#include "runtime/model/files/tensor_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "runtime/base/file_hints.h"
#include "runtime/base/json_file.h"
#include "runtime/model/convert.h"
#include "runtime/model/files/safetensors.h"
#include "runtime/model/files/torch_file.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;

// Which stored types can be read as weights; the others are listed only.
std::optional<DType> weight_type(const std::string& stored) {
  if (stored == "F32") return DType::kF32;
  if (stored == "F16") return DType::kF16;
  if (stored == "BF16") return DType::kBF16;
  return std::nullopt;
}

// The tensors of each shard, by the index's map; in order of name, as the shards are numbered.
std::map<std::string, std::set<std::string>> read_index(const std::string& source) {
  const json object = parse_json_object(read_small_file(source, kMaxIndexBytes), source, DuplicateKeys::kRefuse);
  const auto map = object.find("weight_map");
  if (map == object.end() || !map->is_object()) throw_error(ExitCode::kBadInput, source, "weight_map is missing");
  std::map<std::string, std::set<std::string>> tensors_of;
  for (const auto& [tensor, shard] : map->items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string("/\\\0", 3)) != std::string::npos)
      throw_error(ExitCode::kBadInput, source,
                  str("tensor \"", printable(tensor), "\" is mapped to ", shown(shard), ", which is not a file name"));
    tensors_of[name].insert(tensor);
  }
  return tensors_of;
}

}  // namespace

struct TensorFiles::Format {
  const char* name;
  const char* single;
  const char* index;
  std::vector<StoredTensor> (*parse)(const ByteSource& file);
};

TensorFiles::TensorFiles(const std::string& directory) {
  static constexpr Format kFormats[] = {
      {"safetensors", "model.safetensors", "model.safetensors.index.json", parse_safetensors},
      {"PyTorch", "pytorch_model.bin", "pytorch_model.bin.index.json", parse_torch_file},
  };
  for (const Format& format : kFormats) {
    format_ = format.name;
    const std::string single = directory + "/" + format.single;
    if (is_there(single)) {
      open_shard(single, format, nullptr);
      return;
    }
    if (is_there(directory + "/" + format.index)) {
      open_shards(directory, format);
      return;
    }
  }
  throw_error(ExitCode::kBadInput, directory,
              "has no weights: none of model.safetensors, model.safetensors.index.json, pytorch_model.bin, "
              "pytorch_model.bin.index.json",
              "give a directory with weights, or a GGUF file");
}

void TensorFiles::open_shards(const std::string& directory, const Format& format) {
  const std::string source = directory + "/" + format.index;
  index_ = stamp_of(source);  // before it is read: what is written to it afterwards shows
  for (auto& [name, wanted] : read_index(source)) {
    const std::string path = directory + "/" + name;
    if (!is_there(path))
      throw_error(ExitCode::kBadInput, source, str("names the shard ", printable(name), ", which is not there"));
    open_shard(path, format, &wanted);
    if (!wanted.empty())
      throw_error(ExitCode::kBadInput, path,
                  str("lacks the tensor \"", printable(*wanted.begin()), "\" that ", format.index, " says it holds"));
  }
}

void TensorFiles::open_shard(const std::string& path, const Format& format, std::set<std::string>* wanted) {
  InputFile shard(path);
  for (StoredTensor& tensor : format.parse(shard)) {
    if (wanted != nullptr && wanted->erase(tensor.name) == 0) continue;
    places_.push_back({shards_.size(), tensor.begin, tensor.bytes});
    tensors_.push_back({std::move(tensor.name), std::move(tensor.shape), std::move(tensor.dtype), tensor.bytes});
  }
  shards_.push_back(std::move(shard));
}

void TensorFiles::read(size_t tensor, int64_t first, int64_t count, DType type, void* dst) const {
  const TensorInfo& info = tensors_[tensor];
  const std::optional<DType> stored = weight_type(info.stored_type);
  if (!stored)
    throw_error(ExitCode::kBadInput, file_of(tensor),
                str("tensor \"", printable(info.name), "\" is stored as ", info.stored_type,
                    ", which cannot be read as weights (F32, F16 and BF16 can)"));
  const uint64_t size = dtype_bytes(*stored), begin = static_cast<uint64_t>(first) * size,
                 length = static_cast<uint64_t>(count) * size;
  CHECK(first >= 0 && count >= 0 && begin + length <= info.stored_bytes, info.name, " elements ", first, " + ", count);
  const ByteRange from = range(tensor);
  read_converted(*stored, {from.source, from.begin + begin, length}, type, dst);
}

ByteRange TensorFiles::range(size_t tensor) const {
  const Place& place = places_[tensor];
  return {&shards_[place.shard], place.begin, place.bytes};
}

std::vector<FileStamp> TensorFiles::stamps() const {
  std::vector<FileStamp> stamps;
  if (index_) stamps.push_back(*index_);
  for (const InputFile& shard : shards_) stamps.push_back(shard.stamp());
  return stamps;
}

DType TensorFiles::natural_dtype() const {
  uint64_t elements[3] = {};
  for (const TensorInfo& tensor : tensors_)
    if (const std::optional<DType> type = weight_type(tensor.stored_type))
      elements[static_cast<size_t>(*type)] += tensor.stored_bytes / dtype_bytes(*type);
  return static_cast<DType>(std::max_element(elements, elements + 3) - elements);
}

}  // namespace headrace
