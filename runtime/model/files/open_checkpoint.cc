#include "runtime/model/files/open_checkpoint.h"

#include <sys/stat.h>

#include <filesystem>
#include <set>
#include <string>

#include "runtime/base/input_file.h"
#include "runtime/model/decoder_tensors.h"
#include "runtime/model/files/gguf_parts.h"
#include "runtime/model/files/hub_cache.h"

namespace headrace {

namespace {

namespace fs = std::filesystem;

// Adds the GGUF models in a folder: their files, and of a model in parts the first one. Returns whether it is no such
// folder: it has safetensors or PyTorch's files.
bool add_models(const fs::path& folder, std::set<std::string>* models) {
  for (const auto& entry : fs::directory_iterator(folder)) {  // with an error_code it would end the program
    const fs::path& file = entry.path();                      // where memory is short
    const bool torch = file.extension() == ".bin" && file.filename().string().starts_with("pytorch_model");
    if (torch || file.extension() == ".safetensors") return true;
    const bool images = file.filename().string().starts_with("mmproj");
    if (file.extension() == ".gguf" && !images) models->insert(gguf_part_names(file.string()).front());
  }
  return false;
}

// A folder that has GGUF files and no others of weights, as a snapshot of a repository with several types of weights,
// which may have a folder for each: its only model, or an error that lists them. Else the path itself.
std::string gguf_in(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  std::set<std::string> models;
  try {
    if (add_models(path, &models)) return path;
    if (models.empty()) {
      for (const auto& entry : fs::directory_iterator(path)) {
        if (entry.is_directory(ignored) && add_models(entry.path(), &models)) return path;
      }
    }
  } catch (const fs::filesystem_error&) {
    return path;  // what opens it says what is wrong
  }
  if (models.empty()) return path;
  if (models.size() == 1) return *models.begin();
  std::string list;
  for (const std::string& model : models) list += "\n  " + printable(model);
  throw_error(ExitCode::kBadInput, path, str("has ", models.size(), " GGUF models"), "Give one of them:" + list);
}

}  // namespace

std::unique_ptr<Checkpoint> open_checkpoint(const std::string& model) {
  const std::string path = gguf_in(find_model(model));
  struct stat status = {};
  const bool directory = ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  std::unique_ptr<Checkpoint> checkpoint = directory ? open_hf_directory(path) : open_gguf(path);
  for (const DecoderTensor& tensor : decoder_tensors(checkpoint->config()))
    checkpoint->require(tensor.name, tensor.shape);
  return checkpoint;
}

}  // namespace headrace
