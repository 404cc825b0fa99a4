// EAGLE-3 heads that are broken, or made for another target: each is refused, naming the file and the values.
#include <gtest/gtest.h>

#include "cache/base.h"
#include "runtime/draft/eagle3/checkpoint.h"
#include "tests/support/draft_files.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::eagle3_target;
using testing_support::Eagle3Files;
using testing_support::expect_error;
using testing_support::f32_tensor;

void expect_refused(const Eagle3Files& files, const std::vector<std::string>& expected,
                    const ModelConfig& target = eagle3_target()) {
  const TemporaryFolder folder;
  files.write(folder.path());
  expect_error(ExitCode::kBadInput, folder.path(), expected, [&] { open_eagle3(folder.path(), target); });
}

void expect_eagle3_config_refused(const std::string& merged, const std::vector<std::string>& expected) {
  SCOPED_TRACE(merged);
  Eagle3Files files;
  files.config.update(json::parse(merged));
  expect_refused(files, expected);
}

TEST(Eagle3Refusals, EveryMissingTensorIsNamed) {
  const Eagle3Files right;
  for (const auto& [name, tensor] : right.tensors) {
    if (name == "t2d") continue;  // says nothing that d2t does not
    Eagle3Files files;
    files.tensors.erase(name);
    expect_refused(files, {"lacks the tensor " + name});
  }
  Eagle3Files files;
  files.tensors["fc_norm.0.weight"] = files.tensors["fc_norm.2.weight"] = f32_tensor("fc_norm", {8});
  expect_refused(files, {"lacks the tensor fc_norm.1.weight"});
  expect_eagle3_config_refused(R"({"fc_norm": true})", {"lacks the tensor fc_norm.0.weight"});
  expect_eagle3_config_refused(R"({"eagle_config": {"fc_norm": true}})", {"lacks the tensor fc_norm.0.weight"});
}

TEST(Eagle3Refusals, EveryWrongShapeIsNamed) {
  const Eagle3Files right;
  for (const auto& [name, tensor] : right.tensors) {
    Eagle3Files files;
    std::vector<int64_t> shape = tensor.shape;
    shape[0] += 1;
    files.tensors[name] = f32_tensor(name, shape);
    if (name == "d2t" || name == "t2d")
      files.tensors[name] = {"U8", shape, std::string(static_cast<size_t>(shape[0]), 0)};
    expect_refused(files, {"tensor " + name + " has the shape [" + std::to_string(shape[0])});
  }
}

TEST(Eagle3Refusals, HeadsThatAreTooWideForAttention) {
  Eagle3Files files;
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    files.add(std::string("midlayer.self_attn.") + name + ".weight", {name[0] == 'q' ? 516 : 258, 16});
  }
  expect_refused(files, {"self_attn.q_proj.weight has 516 rows for 2 heads", "head_dim 258 is above 256"});
}

TEST(Eagle3Refusals, TensorsThatItHasNoUseFor) {
  for (const char* name : {"layers.1.mlp.up_proj.weight", "midlayer.self_attn.q_proj.bias",
                           "midlayer.self_attn.q_norm.weight", "input_norm.weight", "lm_head.bias"}) {
    Eagle3Files files;
    files.tensors[name] = f32_tensor(name, {8});
    expect_refused(files, {"model.safetensors", str("\"", name, "\"")});
  }
  Eagle3Files twice;
  twice.tensors["layers.0.mlp.up_proj.weight"] = twice.tensors["midlayer.mlp.up_proj.weight"];
  expect_refused(twice, {"two tensors named \"midlayer.mlp.up_proj.weight\""});
}

TEST(Eagle3Refusals, VocabularyMaps) {
  Eagle3Files files;
  files.set_t2d({0, 1, 4, 5, 18});
  expect_refused(files, {"target id 18", "marked by t2d"});
  files.set_t2d({0, 1, 4, 5});
  expect_refused(files, {"target id 19", "t2d does not mark it"});
  files.set_t2d({0, 1, 2, 4, 5, 19});
  expect_refused(files, {"target id 2 ", "marked by t2d"});
  files.tensors.erase("t2d");
  for (const int64_t offset : {INT64_MAX, INT64_MIN, int64_t{16}, int64_t{-5}}) {
    files.set_d2t({0, 0, 2, 2, offset});
    expect_refused(files, {str("d2t[4] is ", offset), "vocabulary of 20"});
  }
  files.set_d2t({0, 0, 2, 1, 15});  // 4 twice
  expect_refused(files, {"d2t[3] is 1"});
  files.set_d2t({-1, 0, 2, 2, 15});
  expect_refused(files, {"d2t[0] is -1"});
  files.tensors["d2t"] = f32_tensor("d2t", {5});
  expect_refused(files, {"d2t is stored as F32"});
}

TEST(Eagle3Refusals, ATargetThatItWasNotMadeFor) {
  ModelConfig target = eagle3_target();
  target.vocab = 21;
  expect_refused(Eagle3Files(), {"vocab_size 20", "vocabulary is 21"}, target);
  target = eagle3_target();
  target.hidden = 16;
  expect_refused(Eagle3Files(), {"fc.weight has the shape [8, 24]", "target's 16"}, target);
  Eagle3Files files;
  files.tensors["fc.weight"] = f32_tensor("fc.weight", {8, 48});
  expect_refused(files, {"embed_tokens.weight", "hidden size 8", "target's 16"}, target);
  files.tensors["embed_tokens.weight"] = f32_tensor("embed_tokens.weight", {21, 8});
  expect_refused(files, {"embed_tokens.weight has the shape [21, 8]", "[20, 8]"}, target);
  files.config["target_hidden_size"] = 12;
  expect_refused(files, {"target_hidden_size 12", "hidden size is 16"}, target);
  target = eagle3_target();
  target.layers.resize(5);  // 2, 2, 2
  expect_refused(Eagle3Files(), {"names no layer ids", "2, 2 and 2", "5 layers"}, target);
}

TEST(Eagle3Refusals, LayerIds) {
  const std::string key = "eagle_aux_hidden_state_layer_ids";
  expect_eagle3_config_refused("{\"" + key + "\": [2, 6]}", {key + " [2,6]", "three"});
  expect_eagle3_config_refused("{\"" + key + "\": 3}", {key + " 3", "three"});
  expect_eagle3_config_refused("{\"" + key + "\": [2, 6, 12]}", {key + " [2,6,12]", "0 to 11"});
  expect_eagle3_config_refused("{\"" + key + "\": [-1, 6, 9]}", {key + " [-1,6,9]", "0 to 11"});
  expect_eagle3_config_refused("{\"" + key + "\": [2, \"6\", 9]}", {key, "0 to 11"});
  expect_eagle3_config_refused("{\"" + key + "\": [2.5, 6, 9]}", {key, "0 to 11"});
  expect_eagle3_config_refused("{\"" + key + "\": [6, 2, 9]}", {key + " [6,2,9]", "6, 2 and 9", "12 layers"});
  expect_eagle3_config_refused("{\"" + key + "\": [2, 6, 18446744073709551615]}", {key, "0 to 11"});
  expect_eagle3_config_refused(
      "{\"eagle_config\": {\"" + key + "\": [0, 4, 11]}}",  // the last layer's output enters none
      {"eagle_config." + key, "1, 5 and 12", "12 layers"});
}

TEST(Eagle3Refusals, Configs) {
  expect_eagle3_config_refused(R"({"draft_vocab_size": 21})", {"draft_vocab_size 21", "to 20"});
  expect_eagle3_config_refused(R"({"draft_vocab_size": 6})", {"[5, 8]", "[6, 8]"});
  expect_eagle3_config_refused(R"({"num_attention_heads": 5})", {"q_proj", "[12, 16]", "5 heads"});
  expect_eagle3_config_refused(R"({"num_attention_heads": 12})", {"q_proj", "[12, 16]", "12 heads"});
  expect_eagle3_config_refused(R"({"num_key_value_heads": 2})", {"k_proj", "[6, 16]", "[12, 16]"});
  expect_eagle3_config_refused(R"({"num_attention_heads": 2, "num_key_value_heads": 3})",
                               {"num_attention_heads 2", "3"});
  expect_eagle3_config_refused(R"({"hidden_size": null})", {"config.json", "hidden_size is missing"});
  expect_eagle3_config_refused(R"({"hidden_act": "gelu"})", {"hidden_act", "gelu"});
  expect_eagle3_config_refused(R"({"attention_bias": true})", {"attention_bias"});
  expect_eagle3_config_refused(R"({"quantization_config": {"quant_method": "fp8"}})", {"quantization_config", "fp8"});
  expect_eagle3_config_refused(R"({"eagle_config": 3})", {"eagle_config 3", "object"});
  expect_eagle3_config_refused(R"({"sliding_window": 0})", {"sliding_window 0"});
  expect_eagle3_config_refused(R"({"norm_before_fc": true})", {"norm_before_fc", "is not supported", "fc_norm"});
  expect_eagle3_config_refused(R"({"eagle_config": {"norm_before_fc": true}})", {"eagle_config.norm_before_fc"});
  expect_eagle3_config_refused(R"({"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 2.0}})", {"theta 1"});
  expect_eagle3_config_refused(R"({"transformer_layer_config": {}})",
                               {"transformer_layer_config.hidden_size is missing"});
}

TEST(Eagle3Refusals, NoHeadAtAll) {
  const TemporaryFolder folder;
  EXPECT_THROW(open_eagle3(folder.path(), eagle3_target()), Error);
  EXPECT_THROW(open_eagle3(folder.path() + "/gone", eagle3_target()), Error);
  Eagle3Files().write(folder.path());
  std::filesystem::remove(folder / "model.safetensors");
  EXPECT_THROW(open_eagle3(folder.path(), eagle3_target()), Error);
}

}  // namespace
}  // namespace headrace
