// A model on disk, opened: its config, its tensors under Hugging Face names, its tokenizer. One interface over a
// Hugging Face directory (safetensors, one or sharded, memory-mapped) and a GGUF file (v2, v3, dequantised as it is
// read). Opening reads headers only and checks every size and offset against the file. Thread: const methods from any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/base.h"
#include "runtime/model/config.h"
#include "runtime/text/tokenizer.h"

namespace headrace {

struct TensorInfo {
  std::string name;            // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // [out, in] or [n]
  std::string stored_type;     // "BF16", "Q4_1", …
  uint64_t stored_bytes = 0;
  int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
  int64_t cols() const { return shape.empty() ? 0 : shape.back(); }
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  const ModelConfig& config() const { return config_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(const std::string& name) const;  // null if absent
  const TensorInfo& require(const std::string& name,
                            const std::vector<int64_t>& shape) const;  // Error if absent or other shape
  const std::string& path() const { return path_; }
  const std::string& format() const { return format_; }  // "safetensors", "GGUF v3"

  // Rows [row_begin, row_end) of a tensor (a 1-D tensor is one row), converted to `type`, written to dst
  // [row_end - row_begin, cols]. GGUF: dequantised, and the llama row order of q and k undone.
  virtual void read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type, void* dst) const = 0;
  // Tells the OS that the file's pages are no longer wanted, so that a loaded model does not count twice.
  virtual void release_pages(const TensorInfo& tensor) const = 0;
  // The type most of the weights are stored in; quantised files say bf16.
  virtual DType natural_dtype() const = 0;

  virtual Tokenizer load_tokenizer() const = 0;
  // The model's Jinja chat template; empty if it has none.
  virtual std::string chat_template() const = 0;

 protected:
  void set_tensors(std::vector<TensorInfo> tensors);  // Error if two have one name
  size_t index_of(const TensorInfo& tensor) const;    // CHECKs that it is one of tensors()

  ModelConfig config_;
  std::string path_, format_;

 private:
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

// A directory, a .gguf file, or org/name in the local Hugging Face hub cache (HF_HUB_CACHE, HF_HOME,
// ~/.cache/huggingface). Throws Error(kBadInput) that names the file and the value.
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& model);

}  // namespace headrace
