#include "runtime/model/files/tensor_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/base/file_hints.h"
#include "runtime/base/json_file.h"
#include "runtime/model/convert.h"
#include "runtime/model/files/fp8.h"
#include "runtime/model/files/safetensors.h"
#include "runtime/model/files/torch_file.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;
constexpr const char* kE4m3Type = "F8_E4M3";
constexpr int64_t kFp8Read = int64_t{1} << 18;  // elements of a read that are converted at once

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

TensorFiles::TensorFiles(const std::string& directory, std::optional<Fp8Blocks> fp8) : fp8_(fp8) {
  open(directory);
  if (fp8_) find_scales();
}

void TensorFiles::open(const std::string& directory) {
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
      throw_error(ExitCode::kBadInput, source, str("names the shard ", printable(name), ", which does not exist"));
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

void TensorFiles::find_scales() {
  std::map<std::string_view, size_t> index;
  for (size_t i = 0; i < tensors_.size(); ++i) index.emplace(tensors_[i].name, i);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorInfo& info = tensors_[i];
    if (info.stored_type != kE4m3Type) continue;
    const auto found = index.find(info.name + "_scale_inv");
    if (found == index.end())
      throw_error(
          ExitCode::kBadInput, file_of(i),
          str("tensor \"", printable(info.name), "\" is in fp8, but there is no ", printable(info.name), "_scale_inv"));
    const TensorInfo& scales = tensors_[found->second];
    const std::vector<int64_t> expected = {ceil_div(info.rows(), fp8_->rows), ceil_div(info.cols(), fp8_->cols)};
    if (info.shape.size() != 2 || scales.shape != expected)
      throw_error(
          ExitCode::kBadInput, file_of(found->second),
          str("tensor \"", printable(scales.name), "\" has the shape ", shape_text(scales.shape), ", for blocks of ",
              fp8_->rows, " x ", fp8_->cols, " of ", shape_text(info.shape), " it must be ", shape_text(expected)));
    scales_.emplace(i, found->second);
  }
}

// A value times its block's scale in f32, then rounded once.
void TensorFiles::read_fp8(size_t tensor, int64_t first, int64_t count, DType type, void* dst) const {
  const TensorInfo& info = tensors_[tensor];
  const int64_t cols = info.cols(), blocks = tensors_[scales_.at(tensor)].cols(), end = first + count;
  CHECK(first >= 0 && count >= 0 && end <= info.rows() * cols, info.name, " elements ", first, " + ", count);
  const ByteRange from = range(tensor);
  std::vector<uint8_t> bytes(static_cast<size_t>(std::min(count, kFp8Read)));
  std::vector<float> scales(static_cast<size_t>(blocks)), values(bytes.size());
  int64_t scale_row = -1;  // whose scales are read
  char* out = static_cast<char*>(dst);
  for (int64_t begin = first, n = 0; begin < end; begin += n) {
    n = std::min(end - begin, kFp8Read);
    from.source->read(from.begin + static_cast<uint64_t>(begin), bytes.data(), static_cast<uint64_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = (begin + i) / cols / fp8_->rows, col = (begin + i) % cols / fp8_->cols;
      if (row != scale_row) read(scales_.at(tensor), row * blocks, blocks, DType::kF32, scales.data());
      scale_row = row;
      values[static_cast<size_t>(i)] = kE4m3.values[bytes[static_cast<size_t>(i)]] * scales[static_cast<size_t>(col)];
    }
    convert_elements(DType::kF32, reinterpret_cast<const char*>(values.data()), type, out, n);
    out += static_cast<uint64_t>(n) * dtype_bytes(type);
  }
}

void TensorFiles::read(size_t tensor, int64_t first, int64_t count, DType type, void* dst) const {
  const TensorInfo& info = tensors_[tensor];
  if (scales_.contains(tensor)) return read_fp8(tensor, first, count, type, dst);
  const std::optional<DType> stored = weight_type(info.stored_type);
  if (!stored)
    throw_error(ExitCode::kBadInput, file_of(tensor),
                str("tensor \"", printable(info.name), "\" is stored as ", info.stored_type,
                    ", which cannot be read as weights (F32, F16 and BF16 can",
                    info.stored_type == kE4m3Type ? "; the config says nothing of fp8)" : ")"));
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
  for (const TensorInfo& tensor : tensors_) {
    if (const std::optional<DType> type = weight_type(tensor.stored_type))
      elements[static_cast<size_t>(*type)] += tensor.stored_bytes / dtype_bytes(*type);
    if (tensor.stored_type == kE4m3Type) elements[static_cast<size_t>(DType::kBF16)] += tensor.stored_bytes;
  }
  return static_cast<DType>(std::max_element(elements, elements + 3) - elements);
}

}  // namespace headrace
