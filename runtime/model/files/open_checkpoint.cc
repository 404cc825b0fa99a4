#include "runtime/model/files/open_checkpoint.h"

#include <sys/stat.h>

#include "runtime/model/decoder_tensors.h"
#include "runtime/model/files/hub_cache.h"

namespace headrace {

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
