// A model on disk, opened: its config, its tensors under Hugging Face names, its tokenizer. One interface over a
// Hugging Face directory (safetensors or PyTorch's own files, one or sharded) and a GGUF file (v2, v3, dequantised as
// it is read, the llama row order of q and k undone). Opening reads headers only and checks every size and offset
// against the file. Thread: const methods from any thread.
#pragma once

#include <string>

#include "runtime/model/config.h"
#include "runtime/model/tensor_source.h"
#include "runtime/text/tokenizer.h"

namespace headrace {

class Checkpoint : public TensorSource {
 public:
  const ModelConfig& config() const { return config_; }
  const std::string& format() const { return format_; }  // "safetensors", "PyTorch", "GGUF v3"

  // The type most of the weights are stored in; quantised files say bf16.
  virtual DType natural_dtype() const = 0;

  virtual bool has_tokenizer() const { return true; }
  virtual Tokenizer load_tokenizer() const = 0;
  // The model's Jinja chat template; empty if it has none.
  virtual std::string chat_template() const = 0;

 protected:
  ModelConfig config_;
  std::string format_;
};

}  // namespace headrace
