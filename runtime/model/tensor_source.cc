#include "runtime/model/tensor_source.h"

#include "runtime/base/input_file.h"

namespace headrace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += str(text.size() > 1 ? ", " : "", size);
  return text + "]";
}

std::optional<WeightType> TensorInfo::block_type() const {
  return shape.size() == 2 ? find_quantised_type(stored_type) : std::nullopt;
}

void TensorSource::read_blocks(const TensorInfo& tensor, int64_t, int64_t, void*) const {
  CHECK(false, "no blocks of ", tensor.name, " in ", path_);
}

const TensorInfo* TensorSource::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const TensorInfo& TensorSource::require(const std::string& name, const std::vector<int64_t>& shape) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) throw_error(ExitCode::kBadInput, path_, "lacks the tensor " + name);
  if (tensor->shape != shape)
    throw_error(ExitCode::kBadInput, path_,
                str("tensor ", name, " has the shape ", shape_text(tensor->shape), "; its config asks for ",
                    shape_text(shape)));
  return *tensor;
}

void TensorSource::set_tensors(std::vector<TensorInfo> tensors) {
  tensors_ = std::move(tensors);
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (!index_.emplace(tensors_[i].name, i).second)
      throw_error(ExitCode::kBadInput, path_, "has two tensors named \"" + printable(tensors_[i].name) + "\"");
}

size_t TensorSource::index_of(const TensorInfo& tensor) const {
  const auto found = index_.find(tensor.name);
  CHECK(found != index_.end(), "no tensor ", tensor.name, " in ", path_);
  return found->second;
}

}  // namespace headrace
