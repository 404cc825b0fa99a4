// docs/design.md, section 6: the residual stream is f32 in decode passes, and has the weights' type in prefill. The
// model here adds to a large state what bf16 rounds away, layer after layer.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/draft_files.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing_support::DraftFiles;
using testing_support::f32_tensor;

constexpr int64_t kHidden = 64, kLayers = 24, kVocab = 16;

// value_of(row, column)
template <typename Value>
void add(DraftFiles* files, const std::string& name, const std::vector<int64_t>& shape, const Value& value_of) {
  testing_support::FileTensor tensor = f32_tensor(name, shape);
  const int64_t columns = shape.back(), count = static_cast<int64_t>(tensor.bytes.size() / sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    const float value = value_of(i / columns, i % columns);
    std::memcpy(tensor.bytes.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
  }
  files->tensors[name] = tensor;
}

// Every state begins as 1,024 in all columns. A layer's MLP adds about 2 to the even ones: a quarter of what two values
// of bf16 differ by there. A logit is the even columns less the odd ones of the normalised state, so without what was
// added it is 0.
void write_patient_model(const std::string& folder) {
  DraftFiles files;
  files.config = {{"architectures", {"LlamaForCausalLM"}},
                  {"model_type", "llama"},
                  {"hidden_size", kHidden},
                  {"intermediate_size", kHidden},
                  {"num_hidden_layers", kLayers},
                  {"num_attention_heads", 4},
                  {"num_key_value_heads", 4},
                  {"head_dim", 16},
                  {"rms_norm_eps", 1e-5},
                  {"rope_theta", 10000.0},
                  {"max_position_embeddings", 512},
                  {"vocab_size", kVocab},
                  {"tie_word_embeddings", false},
                  {"hidden_act", "silu"},
                  {"torch_dtype", "float32"}};
  const auto filled_with = [](float value) { return [value](int64_t, int64_t) { return value; }; };
  add(&files, "model.embed_tokens.weight", {kVocab, kHidden}, filled_with(1024.0f));
  add(&files, "lm_head.weight", {kVocab, kHidden}, [](int64_t, int64_t col) { return col % 2 == 0 ? 1.0f : -1.0f; });
  add(&files, "model.norm.weight", {kHidden}, filled_with(1.0f));
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string at = str("model.layers.", layer, ".");
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) {
      add(&files, at + norm, {kHidden}, filled_with(1.0f));
    }
    for (const char* zero : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      add(&files, at + "self_attn." + zero + ".weight", {kHidden, kHidden}, filled_with(0.0f));
    }
    add(&files, at + "mlp.gate_proj.weight", {kHidden, kHidden}, filled_with(0x1p-4f));  // gate 4, silu(4) = 3.93
    add(&files, at + "mlp.up_proj.weight", {kHidden, kHidden}, filled_with(0x1p-6f));    // up 1
    add(&files, at + "mlp.down_proj.weight", {kHidden, kHidden},
        [](int64_t row, int64_t) { return row % 2 == 0 ? 0x1p-7f : 0.0f; });
  }
  files.write(folder);
}

class ResidualStream : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  ResidualStream() { write_patient_model(folder_.path()); }

  // The first logit of the prompt's last token, and of `steps` decoded ones.
  std::vector<float> logits(DType type, int64_t steps) const {
    const testing::LoadedModel model(folder_.path(), type, GetParam());
    const std::vector<int32_t> prompt = testing::made_up_ids(70, kVocab);
    const std::unique_ptr<testing::Session> session =
        model.session(model.options(static_cast<int64_t>(prompt.size()), steps + 2));
    std::vector<std::vector<float>> all;
    testing::decode_plainly(*session, prompt, steps + 1, &all);
    std::vector<float> first;
    for (const std::vector<float>& row : all) first.push_back(row.at(0));
    return first;
  }

  const TemporaryFolder folder_;
};

TEST_P(ResidualStream, OfDecodePassesIsNotRounded) {
  const std::vector<float> exact = logits(DType::kF32, 3), got = logits(DType::kBF16, 3);
  ASSERT_EQ(exact.size(), 4u);
  ASSERT_EQ(got.size(), 4u);
  for (const float logit : exact) EXPECT_NEAR(logit, 1.44f, 0.05f);
  EXPECT_EQ(got[0], 0.0f) << "prefill's states have the weights' type";
  for (size_t i = 1; i < got.size(); ++i) EXPECT_NEAR(got[i], exact[i], 0.2f) << "step " << i;
}

INSTANTIATE_TEST_SUITE_P(All, ResidualStream, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& instance) { return testing::device_name(instance.param); });

}  // namespace
}  // namespace headrace
