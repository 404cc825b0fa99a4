#include "runtime/model/checkpoint.h"

#include <sys/stat.h>

#include "runtime/model/decoder_tensors.h"
#include "runtime/model/gguf_checkpoint.h"
#include "runtime/model/hf_directory.h"
#include "runtime/model/hub_cache.h"
#include "runtime/model/mapped_file.h"

namespace headrace {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += str(text.size() > 1 ? ", " : "", size);
  return text + "]";
}

}  // namespace

const TensorInfo* Checkpoint::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const TensorInfo& Checkpoint::require(const std::string& name, const std::vector<int64_t>& shape) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) throw_error(ExitCode::kBadInput, path_, "lacks the tensor " + name);
  if (tensor->shape != shape)
    throw_error(ExitCode::kBadInput, path_,
                str("tensor ", name, " has the shape ", shape_text(tensor->shape), "; its config asks for ",
                    shape_text(shape)));
  return *tensor;
}

void Checkpoint::set_tensors(std::vector<TensorInfo> tensors) {
  tensors_ = std::move(tensors);
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (!index_.emplace(tensors_[i].name, i).second)
      throw_error(ExitCode::kBadInput, path_, "has two tensors named \"" + printable(tensors_[i].name) + "\"");
}

size_t Checkpoint::index_of(const TensorInfo& tensor) const {
  const auto found = index_.find(tensor.name);
  CHECK(found != index_.end(), "no tensor ", tensor.name, " in ", path_);
  return found->second;
}

std::unique_ptr<Checkpoint> open_checkpoint(const std::string& model) {
  const std::string path = find_model(model);
  struct stat status = {};
  const bool directory = ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  std::unique_ptr<Checkpoint> checkpoint = directory ? open_hf_directory(path) : open_gguf(path);
  for (const DecoderTensor& tensor : decoder_tensors(checkpoint->config()))
    checkpoint->require(tensor.name, tensor.shape);
  return checkpoint;
}

}  // namespace headrace
