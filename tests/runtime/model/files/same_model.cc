#include "tests/runtime/model/files/same_model.h"

#include <gtest/gtest.h>

namespace headrace::testing_support {

std::string tiny_file(const std::string& name) { return HEADRACE_TEST_DATA "/tiny/" + name; }

std::vector<float> tensor_values(const Checkpoint& model, const DecoderTensor& tensor) {
  const TensorInfo& info = model.require(tensor.name, tensor.shape);
  std::vector<float> values(static_cast<size_t>(info.rows() * info.cols()));
  model.read_rows(info, 0, info.rows(), DType::kF32, values.data());
  return values;
}

void expect_same_sizes(const Checkpoint& gguf, const Checkpoint& directory) {
  const ModelConfig &a = directory.config(), &b = gguf.config();
  EXPECT_EQ(b.family, a.family);
  EXPECT_EQ(b.hidden, a.hidden);
  EXPECT_EQ(b.vocab, a.vocab);
  EXPECT_EQ(b.max_positions, a.max_positions);
  EXPECT_EQ(static_cast<float>(b.rms_eps), static_cast<float>(a.rms_eps));
  EXPECT_EQ(b.rope.theta, a.rope.theta);
  EXPECT_EQ(b.tied_head, a.tied_head);
  EXPECT_EQ(b.scaled_embedding, a.scaled_embedding);
  EXPECT_EQ(b.end_ids, a.end_ids);
}

void expect_same_tensors(const Checkpoint& gguf, const Checkpoint& directory) {
  const std::vector<DecoderTensor> tensors = decoder_tensors(directory.config());
  EXPECT_EQ(directory.tensors().size(), tensors.size());
  EXPECT_EQ(gguf.tensors().size(), tensors.size());
  for (const DecoderTensor& tensor : tensors) {
    ASSERT_EQ(tensor_values(gguf, tensor), tensor_values(directory, tensor)) << tensor.name;
  }
}

}  // namespace headrace::testing_support
