#include "runtime/draft/checkpoint.h"

#include <utility>

namespace headrace {

DraftCheckpoint::DraftCheckpoint(const std::string& directory) {
  path_ = directory;
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  config_file_ = path_ + "/config.json";
}

void DraftCheckpoint::add_tensor(TensorInfo info, size_t file_tensor, int64_t first_column) {
  named_.push_back(std::move(info));
  places_.push_back({file_tensor, first_column});
}

void DraftCheckpoint::read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type,
                                void* dst) const {
  check_rows(tensor, row_begin, row_end);
  const Place& place = places_[index_of(tensor)];
  const int64_t cols = tensor.cols(), stored_cols = files_.tensors()[place.file_tensor].cols();
  if (cols == stored_cols)
    return files_.read(place.file_tensor, row_begin * cols, (row_end - row_begin) * cols, type, dst);
  char* out = static_cast<char*>(dst);
  for (int64_t row = row_begin; row < row_end; ++row, out += static_cast<size_t>(cols) * dtype_bytes(type))
    files_.read(place.file_tensor, row * stored_cols + place.first_column, cols, type, out);
}

void refuse_unsupported_layer(const JsonFields& fields, const char* what) {
  if (fields.has("quantization_config"))
    fields.refuse("quantization_config", "is not supported", str("give the bf16, f16 or f32 directory of this ", what));
  const std::string activation = fields.string_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") fields.refuse("hidden_act", "is not supported (\"silu\" is)");
}

}  // namespace headrace
