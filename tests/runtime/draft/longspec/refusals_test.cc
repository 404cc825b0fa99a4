// LongSpec layers in their published spellings are read; broken ones, and ones made for another target, are refused,
// naming the file and the values.
#include <gtest/gtest.h>

#include "runtime/draft/longspec/checkpoint.h"
#include "tests/support/draft_files.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::expect_error;
using testing_support::f32_tensor;
using testing_support::longspec_target;
using testing_support::LongSpecFiles;

bool unused(const std::string& name) {
  return name.starts_with("cross_attn.k_proj") || name.starts_with("cross_attn.v_proj");
}

std::vector<float> all_rows(const TensorSource& source, const std::string& name) {
  const TensorInfo& info = *source.find(name);
  std::vector<float> values(static_cast<size_t>(info.rows() * info.cols()));
  source.read_rows(info, 0, info.rows(), DType::kF32, values.data());
  return values;
}

TEST(LongSpecCheckpoint, EveryPublishedSpellingIsTheSame) {
  const TemporaryFolder flat_folder;
  LongSpecFiles().write(flat_folder.path());
  const auto flat = open_longspec(flat_folder.path(), longspec_target());
  EXPECT_EQ(flat->tensors().size(), 16u);
  EXPECT_EQ(flat->config().ffn, 10);
  EXPECT_EQ(flat->config().head_dim, 4);
  EXPECT_EQ(flat->config().window, 512);
  for (const char* prefix : {"draft_model.", "glide."}) {
    LongSpecFiles files;
    files.prefix(prefix);
    files.tensors["model.embed_tokens.weight"] = f32_tensor("embed", {20, 8});  // the target beside it
    files.tensors["lm_head.weight"] = f32_tensor("head", {20, 8});
    const TemporaryFolder folder;
    files.write(folder.path());
    const auto prefixed = open_longspec(folder.path(), longspec_target());
    ASSERT_EQ(prefixed->tensors().size(), flat->tensors().size());
    for (const TensorInfo& info : flat->tensors()) {
      EXPECT_EQ(all_rows(*prefixed, info.name), all_rows(*flat, info.name)) << info.name;
    }
  }
  LongSpecFiles without;  // what is never used need not be there
  std::erase_if(without.tensors, [](const auto& entry) { return unused(entry.first); });
  const TemporaryFolder folder;
  without.write(folder.path());
  EXPECT_EQ(open_longspec(folder.path(), longspec_target())->tensors().size(), 16u);
}

void expect_refused(const LongSpecFiles& files, const std::vector<std::string>& expected,
                    const ModelConfig& target = longspec_target()) {
  const TemporaryFolder folder;
  files.write(folder.path());
  expect_error(ExitCode::kBadInput, folder.path(), expected, [&] { open_longspec(folder.path(), target); });
}

void expect_longspec_config_refused(const std::string& merged, const std::vector<std::string>& expected) {
  SCOPED_TRACE(merged);
  LongSpecFiles files;
  files.config.update(json::parse(merged));
  expect_refused(files, expected);
}

TEST(LongSpecRefusals, EveryMissingTensorAndEveryWrongShapeIsNamed) {
  const LongSpecFiles right;
  for (const auto& [name, tensor] : right.tensors) {
    if (unused(name)) continue;
    LongSpecFiles files;
    files.tensors.erase(name);
    expect_refused(files, {"lacks the tensor " + name});
    std::vector<int64_t> shape = tensor.shape;
    shape[0] += 1;
    files.tensors[name] = f32_tensor(name, shape);
    expect_refused(files, {"tensor " + name + " has the shape [" + std::to_string(shape[0])});
  }
}

TEST(LongSpecRefusals, TensorsThatItHasNoUseFor) {
  for (const char* name : {"self_attn.o_proj.bias", "norm.weight", "layers.0.mlp.up_proj.weight", "fc.weight"}) {
    LongSpecFiles files;
    files.tensors[name] = f32_tensor(name, {8});
    expect_refused(files, {"model.safetensors", str("\"", name, "\""), "draft_model."});
  }
  LongSpecFiles other;
  other.prefix("draft.");
  expect_refused(other, {"\"draft."});
  LongSpecFiles model;  // a whole model, and no draft in it
  model.prefix("model.layers.0.");
  expect_refused(model, {"\"model.layers.0.", "draft_model."});
  LongSpecFiles both;
  both.prefix("draft_model.");
  both.tensors["glide.input_layernorm.weight"] = f32_tensor("glide", {8});
  expect_refused(both, {"\"glide.input_layernorm.weight\""});
}

TEST(LongSpecRefusals, ATargetThatItWasNotMadeFor) {
  const auto refused = [&](int64_t ModelConfig::*field, int64_t value, const std::vector<std::string>& expected) {
    ModelConfig target = longspec_target();
    target.*field = value;
    expect_refused(LongSpecFiles(), expected, target);
  };
  const auto refused_heads = [&](int64_t AttentionSpec::*field, int64_t value,
                                 const std::vector<std::string>& expected) {
    ModelConfig target = longspec_target();
    target.layers.back().attention().*field = value;
    expect_refused(LongSpecFiles(), expected, target);
  };
  refused(&ModelConfig::hidden, 16, {"hidden_size 8", "hidden size is 16"});
  refused_heads(&AttentionSpec::heads, 4, {"num_attention_heads 2", "number of heads is 4"});
  refused_heads(&AttentionSpec::kv_heads, 2, {"num_key_value_heads 1", "number of KV heads is 2"});
  refused(&ModelConfig::vocab, 21, {"vocab_size 20", "vocabulary is 21"});
  refused_heads(&AttentionSpec::head_dim, 6, {"self_attn.q_proj.weight has the shape [8, 8]", "[12, 8]"});
}

TEST(LongSpecRefusals, Configs) {
  expect_longspec_config_refused(R"({"head_dim": 6})", {"config.json", "head_dim 6", "head_dim is 4"});
  expect_longspec_config_refused(R"({"hidden_size": null})", {"config.json", "hidden_size is missing"});
  expect_longspec_config_refused(R"({"intermediate_size": 12})",
                                 {"mlp.gate_proj.weight has the shape [10, 8]", "[12, 8]"});
  expect_longspec_config_refused(R"({"hidden_act": "gelu"})", {"hidden_act", "gelu"});
  expect_longspec_config_refused(R"({"quantization_config": {"quant_method": "fp8"}})", {"quantization_config", "fp8"});
  const TemporaryFolder empty;
  EXPECT_THROW(open_longspec(empty.path(), longspec_target()), Error);
}

}  // namespace
}  // namespace headrace
