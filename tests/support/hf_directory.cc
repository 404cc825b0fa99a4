#include "tests/support/hf_directory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/model/files/open_checkpoint.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json config_json(const ModelConfig& c, DType type) {
  if (c.rope.scaling != RopeScaling::kNone) {
    throw_error(ExitCode::kInternal, "write_hf_directory", "rope scaling is not written");
  }
  return {{"model_type", c.family},
          {"hidden_size", c.hidden},
          {"intermediate_size", c.layers.front().ffn.width},
          {"num_hidden_layers", c.layer_count()},
          {"num_attention_heads", c.layers.front().attention().heads},
          {"num_key_value_heads", c.layers.front().attention().kv_heads},
          {"head_dim", c.layers.front().attention().head_dim},
          {"vocab_size", c.vocab},
          {"max_position_embeddings", c.max_positions},
          {"rms_norm_eps", c.rms_eps},
          {"rope_theta", c.rope.theta},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", c.tied_head},
          {"eos_token_id", c.end_ids},
          {"torch_dtype", type == DType::kF32   ? "float32"
                          : type == DType::kF16 ? "float16"
                                                : "bfloat16"}};
}

uint64_t elements(const TensorInfo& tensor) {
  return static_cast<uint64_t>(tensor.rows()) * static_cast<uint64_t>(tensor.cols());
}

std::string safetensors_header(const Checkpoint& model, DType type) {
  const char* name = type == DType::kF32 ? "F32" : type == DType::kF16 ? "F16" : "BF16";
  json header = json::object();
  uint64_t offset = 0;
  for (const TensorInfo& tensor : model.tensors()) {
    const uint64_t end = offset + elements(tensor) * dtype_bytes(type);
    header[tensor.name] = {{"dtype", name}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize(round_up(text.size(), 8), ' ');
  return text;
}

void write_tensor(const Checkpoint& model, const TensorInfo& tensor, DType type, std::ofstream& out) {
  constexpr int64_t kRowsAtOnce = 4096;
  const int64_t rows_at_once = std::min(tensor.rows(), kRowsAtOnce);
  std::vector<char> buffer(static_cast<size_t>(rows_at_once * tensor.cols()) * dtype_bytes(type));
  for (int64_t row = 0; row < tensor.rows(); row += rows_at_once) {
    const int64_t end = std::min(row + rows_at_once, tensor.rows());
    model.read_rows(tensor, row, end, type, buffer.data());
    out.write(buffer.data(), static_cast<std::streamsize>(end - row) * tensor.cols() *
                                 static_cast<std::streamsize>(dtype_bytes(type)));
  }
}

}  // namespace

void write_hf_directory(const Checkpoint& model, DType type, const std::string& folder) {
  fs::create_directories(folder);
  std::ofstream(folder + "/config.json") << config_json(model.config(), type).dump(1);
  const std::string path = folder + "/model.safetensors", header = safetensors_header(model, type);
  std::ofstream out(path, std::ios::binary);
  const uint64_t length = header.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof length);  // little-endian, as this machine is
  out << header;
  for (const TensorInfo& tensor : model.tensors()) write_tensor(model, tensor, type, out);
  out.close();
  if (!out) throw_error(ExitCode::kStorage, path, "could not be written whole");
}

std::string test_gguf() {
  const char* path = std::getenv("HEADRACE_TEST_GGUF");
  if (path == nullptr || *path == '\0') {
    throw_error(ExitCode::kUsage, "HEADRACE_TEST_GGUF", "is not set, so there is no real model to test with",
                "HEADRACE_TEST_GGUF=$(bash tests/fetch_model.sh), or run tests/run.sh");
  }
  return path;
}

std::string test_gguf_as_directory(DType type) {
  const std::string gguf = test_gguf(), folder = gguf + "." + dtype_name(type) + ".v1";
  if (fs::exists(folder)) return folder;
  const std::string work = folder + ".tmp" + std::to_string(::getpid());
  write_hf_directory(*open_checkpoint(gguf), type, work);
  std::error_code error;
  fs::rename(work, folder, error);
  if (error) fs::remove_all(work);  // another process was first: rename does not replace a directory with files
  if (!fs::exists(folder)) throw_error(ExitCode::kStorage, folder, "could not be made: " + error.message());
  return folder;
}

}  // namespace headrace
