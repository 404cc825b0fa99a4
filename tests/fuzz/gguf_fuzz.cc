// libFuzzer: any bytes as a GGUF file, through to config, vocabulary and weights. What the parser lets through must lie
// within the bytes.
#include <algorithm>
#include <vector>

#include "cache/base.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/files/tensor_parts.h"
#include "runtime/model/gguf/gguf_vocabulary.h"

namespace {

void read_weights(const headrace::GgufFile& file, std::string_view bytes) {
  for (const headrace::GgufTensor& tensor : file.tensors) {
    CHECK(tensor.begin <= bytes.size() && tensor.bytes <= bytes.size() - tensor.begin, tensor.begin, " ", tensor.bytes);
    if (!headrace::can_read(*tensor.type)) continue;
    const int64_t last = static_cast<int64_t>(tensor.bytes) / tensor.type->block_bytes - 1;
    std::vector<float> block(static_cast<size_t>(tensor.type->block_elements));
    for (const int64_t index : {int64_t{0}, last})
      headrace::dequantize(*tensor.type, bytes.data() + tensor.begin + index * tensor.type->block_bytes,
                           headrace::DType::kF32, block.data(), tensor.type->block_elements);
  }
}

// A decoder's tensors are ranges of rows of the file's.
void split_tensors(const headrace::GgufFile& file, const headrace::ModelConfig& config) {
  const headrace::GgufForm& form = headrace::gguf_form(file);
  std::vector<headrace::TensorInfo> stored;
  for (const headrace::GgufTensor& tensor : file.tensors)
    stored.push_back({headrace::decoder_name(tensor.name, form, config.layer_count()), tensor.shape, tensor.type->name,
                      tensor.bytes});
  for (const headrace::TensorPart& part :
       headrace::decoder_parts(config, stored, "fuzz", {.rotary_pairs = form.rotary_pairs})) {
    const headrace::TensorInfo& whole = stored[part.stored];
    CHECK(part.first_row >= 0 && part.first_row + part.tensor.rows() <= whole.rows(), part.first_row, " ",
          whole.rows());
    CHECK(part.tensor.stored_bytes <= whole.stored_bytes, part.tensor.stored_bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const headrace::MemoryBytes source(bytes, "fuzz");
    const headrace::GgufFile file = headrace::parse_gguf(source);
    read_weights(file, bytes);
    const headrace::ModelConfig config = headrace::gguf_config(file, source);
    headrace::make_rope_table(config.rope, config.rope_dims(), config.max_positions);
    split_tensors(file, config);
    headrace::gguf_vocabulary(file);
  } catch (const headrace::Error& error) {
    CHECK(error.code() == headrace::ExitCode::kBadInput, error.what());
  }
  return 0;
}
