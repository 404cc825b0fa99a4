// The files of a draft layer: a directory with config.json and tensors, some of which are renamed, split or omitted.
// Thread: const methods from any thread.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json_file.h"
#include "runtime/model/files/tensor_files.h"
#include "runtime/model/tensor_source.h"

namespace headrace {

class DraftCheckpoint : public TensorSource {
 public:
  void read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type, void* dst) const override;
  ByteRange stored_range(const TensorInfo& tensor) const override {  // of the whole tensor if it is a part
    return files_.range(places_[index_of(tensor)].file_tensor);
  }
  std::vector<FileStamp> files() const override { return files_.stamps(); }

 protected:
  explicit DraftCheckpoint(const std::string& directory);

  // Adds the file's tensor, from one of its columns on, with the name and shape of `info`; finish_tensors() ends the
  // list.
  void add_tensor(TensorInfo info, size_t file_tensor, int64_t first_column = 0);
  void finish_tensors() { set_tensors(std::move(named_)); }

  std::string config_file_;
  TensorFiles files_;  // opened by the derived class after it has read config_file_

 private:
  struct Place {
    size_t file_tensor = 0;    // in files_
    int64_t first_column = 0;  // of the stored rows
  };
  std::vector<TensorInfo> named_;
  std::vector<Place> places_;  // parallel to tensors()
};

// `what`: "head" or "draft", for the hint.
void refuse_unsupported_layer(const JsonFields& fields, const char* what);

template <size_t kCount>
bool among(std::string_view name, const char* const (&names)[kCount]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace headrace
