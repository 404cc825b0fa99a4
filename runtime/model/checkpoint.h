// An opened model: its config, its tensors under Hugging Face names, its tokenizer. One interface for a Hugging Face
// directory (safetensors or PyTorch files, single or sharded) and for a GGUF file (v2 or v3; rows are dequantised when
// they are read, and llama's row order of q and k is undone). Opening reads only headers, and checks every size and
// offset against the file. Thread: const methods from any thread.
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

  // The type of most stored weights; bf16 for quantised files.
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
