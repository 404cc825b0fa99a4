#include "runtime/model/files/open_checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "runtime/base/input_file.h"
#include "runtime/model/decoder_tensors.h"
#include "runtime/model/files/hub_cache.h"

namespace headrace {

namespace {

namespace fs = std::filesystem;

// A folder that has GGUF files and no safetensors, as a snapshot of a repository with several types of weights: its
// only model, or an error that lists them. Else the path itself.
std::string gguf_in(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  std::vector<std::string> files;
  try {  // with an error_code the iterator would end the program where memory is short
    for (const auto& entry : fs::directory_iterator(path)) {
      const fs::path& file = entry.path();
      if (file.extension() == ".safetensors") return path;
      const bool images = file.filename().string().starts_with("mmproj");
      if (file.extension() == ".gguf" && !images) files.push_back(file.string());
    }
  } catch (const fs::filesystem_error&) {
    return path;  // what opens it says what is wrong
  }
  if (files.empty()) return path;
  if (files.size() == 1) return files.front();
  std::sort(files.begin(), files.end());
  std::string list;
  for (const std::string& file : files) list += "\n  " + printable(file);
  throw_error(ExitCode::kBadInput, path, str("has ", files.size(), " GGUF files"), "Give one of them:" + list);
}

// "model-00001-of-00003.gguf"
void refuse_part(const std::string& path) {
  static const std::regex kPart("-[0-9]{5}-of-([0-9]{5})\\.gguf$");
  std::smatch match;
  if (!std::regex_search(path, match, kPart)) return;
  throw_error(ExitCode::kBadInput, path,
              str("is one of ", std::stoi(match[1]), " parts of a model, which are not read"),
              "Join them: llama-gguf-split --merge FIRST-PART MODEL.gguf");
}

}  // namespace

std::unique_ptr<Checkpoint> open_checkpoint(const std::string& model) {
  const std::string path = gguf_in(find_model(model));
  refuse_part(path);
  struct stat status = {};
  const bool directory = ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  std::unique_ptr<Checkpoint> checkpoint = directory ? open_hf_directory(path) : open_gguf(path);
  for (const DecoderTensor& tensor : decoder_tensors(checkpoint->config()))
    checkpoint->require(tensor.name, tensor.shape);
  return checkpoint;
}

}  // namespace headrace
