// The weight files of a directory: model.safetensors or pytorch_model.bin, one or in shards that an
// index names. Elements are reached by tensor and position. Opening reads headers only. Thread: const methods from any
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/input_file.h"
#include "runtime/model/families/fp8_json.h"
#include "runtime/model/files/stored_tensor.h"
#include "runtime/model/tensor_source.h"

namespace headrace {

class TensorFiles {
 public:
  TensorFiles() = default;
  // Throws Error(kBadInput) if there are none, or if one is broken. `fp8`: the blocks of matrices in e4m3, each of
  // which has its scales in a tensor beside it (NAME_scale_inv); none: there are no such matrices.
  explicit TensorFiles(const std::string& directory, std::optional<Fp8Blocks> fp8 = {});

  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in order of file and position
  const char* format() const { return format_; }                       // "safetensors", "PyTorch"

  // `count` elements from the `first` on, converted to `type`. Error if they are stored as no float type.
  void read(size_t tensor, int64_t first, int64_t count, DType type, void* dst) const;
  ByteRange range(size_t tensor) const;  // as stored
  const std::string& file_of(size_t tensor) const { return shards_[places_[tensor].shard].name(); }
  std::vector<FileStamp> stamps() const;  // of all of them, and of the index that says what is where
  DType natural_dtype() const;            // the type most of the elements are stored in

 private:
  struct Place {
    size_t shard = 0;
    uint64_t begin = 0, bytes = 0;
  };
  struct Format;  // what a weight file and the index of its shards are called, and which reader it has

  void open(const std::string& directory);
  void open_shards(const std::string& directory, const Format& format);
  // Opens a file and adds its tensors: those that are in `wanted`, which it takes out of there, or all if it is null.
  void open_shard(const std::string& path, const Format& format, std::set<std::string>* wanted);

  void find_scales();
  // As read() of a matrix in e4m3.
  void read_fp8(size_t tensor, int64_t first, int64_t count, DType type, void* dst) const;

  const char* format_ = nullptr;
  std::optional<Fp8Blocks> fp8_;
  std::map<size_t, size_t> scales_;  // of tensors in e4m3: the index of their scales
  std::optional<FileStamp> index_;   // none: one file holds all
  std::vector<InputFile> shards_;
  std::vector<TensorInfo> tensors_;
  std::vector<Place> places_;  // beside tensors_
};

}  // namespace headrace
