// EAGLE-3 heads open: the real one under tests/data, and a small one in each spelling that publishers use.
#include "runtime/draft/eagle3/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/model/files/tensor_files.h"
#include "tests/support/draft_files.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/torch_files.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::eagle3_target;
using testing_support::Eagle3Files;
using testing_support::f32_tensor;
using LayerIds = std::array<int64_t, 3>;

std::unique_ptr<Eagle3Checkpoint> open_small(const Eagle3Files& files, const ModelConfig& target = eagle3_target()) {
  const TemporaryFolder folder;
  files.write(folder.path());
  return open_eagle3(folder.path(), target);  // the files stay mapped
}

std::vector<float> all_of(const Eagle3Checkpoint& head, const std::string& name) {
  const TensorInfo* info = head.find(name);
  CHECK(info != nullptr, name);
  std::vector<float> values(static_cast<size_t>(info->rows() * info->cols()));
  head.read_rows(*info, 0, info->rows(), DType::kF32, values.data());
  return values;
}

std::vector<float> floats(const testing_support::FileTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::copy_n(tensor.bytes.data(), tensor.bytes.size(), reinterpret_cast<char*>(values.data()));
  return values;
}

TEST(Eagle3Checkpoint, TheHeadForSmolLm2) {
  ModelConfig target;
  target.layers.resize(30), target.hidden = 576, target.vocab = 49152, target.max_positions = 65536;
  const std::string directory = HEADRACE_TEST_DATA "/eagle3";
  const std::unique_ptr<Eagle3Checkpoint> head = open_eagle3(directory + "/", target);
  const Eagle3Config& c = head->config();
  EXPECT_EQ(c.hidden, 576);
  EXPECT_EQ(c.heads, 9);
  EXPECT_EQ(c.kv_heads, 3);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.ffn, 1536);
  EXPECT_EQ(c.vocab, 8192);
  EXPECT_EQ(c.target_vocab, 49152);
  EXPECT_EQ(c.target_hidden, 576);
  EXPECT_EQ(c.max_positions, 65536);
  EXPECT_EQ(c.rms_eps, 1e-5);
  EXPECT_EQ(c.rope.theta, 2e6);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(c.sliding_window, 2048);
  EXPECT_EQ(c.feature_layers, (LayerIds{2, 15, 27}));
  EXPECT_FALSE(c.norm_before_residual || c.fc_norm || c.norm_output || c.own_embedding);
  EXPECT_TRUE(c.own_head);

  // d2t against the file itself.
  const TensorFiles files(directory);
  ASSERT_EQ(head->target_ids().size(), 8192u);
  for (size_t i = 0; i < files.tensors().size(); ++i) {
    if (files.tensors()[i].name != "d2t") continue;
    const std::string bytes = files.range(i).text();
    const int64_t* offsets = reinterpret_cast<const int64_t*>(bytes.data());
    for (size_t id = 0; id < 8192; ++id)
      ASSERT_EQ(head->target_ids()[id], static_cast<int64_t>(id) + offsets[id]) << id;
  }
  EXPECT_TRUE(std::is_sorted(head->target_ids().begin(), head->target_ids().end()));
}

TEST(Eagle3Checkpoint, FcComesInThreeColumnBlocks) {
  const Eagle3Files files;
  const std::unique_ptr<Eagle3Checkpoint> head = open_small(files);
  const std::vector<float> fc = floats(files.tensors.at("fc.weight"));
  for (size_t block = 0; block < 3; ++block) {
    const std::string name = str("fc.", block, ".weight");
    const std::vector<float> values = all_of(*head, name);
    ASSERT_EQ(values.size(), 64u);
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(values[i], fc[i / 8 * 24 + block * 8 + i % 8]) << name << " " << i;
    uint16_t row[8], whole[64];  // rows in between, in another type
    head->read_rows(*head->find(name), 5, 6, DType::kBF16, row);
    head->read_rows(*head->find(name), 0, 8, DType::kBF16, whole);
    EXPECT_TRUE(std::equal(row, row + 8, whole + 40));
  }
  EXPECT_EQ(all_of(*head, "midlayer.mlp.down_proj.weight"), floats(files.tensors.at("midlayer.mlp.down_proj.weight")));
  EXPECT_EQ(head->find("fc.weight"), nullptr);
  EXPECT_EQ(head->target_ids(), (std::vector<int32_t>{0, 1, 4, 5, 19}));
}

TEST(Eagle3Checkpoint, NamesWithEveryPrefix) {
  const Eagle3Files right;
  for (const std::string prefix : {"midlayer.", "layers.0.", "model.layers.0.", "model.midlayer."}) {
    SCOPED_TRACE(prefix);
    Eagle3Files files;
    files.tensors.clear();
    for (const auto& [name, tensor] : right.tensors) {
      const bool of_layer = name.rfind("midlayer.", 0) == 0;
      const bool prefixed = prefix.rfind("model.", 0) == 0 && name.find(".weight") != std::string::npos;
      files.tensors[of_layer ? prefix + name.substr(9) : prefixed ? "model." + name : name] = tensor;
    }
    files.tensors[prefix + "self_attn.rotary_emb.inv_freq"] = f32_tensor("inv_freq", {3});  // of no use
    const std::unique_ptr<Eagle3Checkpoint> head = open_small(files);
    EXPECT_EQ(head->tensors().size(), right.tensors.size() + 2);  // fc is three
    EXPECT_EQ(all_of(*head, "midlayer.self_attn.o_proj.weight"),
              floats(right.tensors.at("midlayer.self_attn.o_proj.weight")));
  }
}

TEST(Eagle3Checkpoint, AsPyTorchWroteIt) {
  const Eagle3Files files;
  const TemporaryFolder folder;
  folder.write("config.json", files.config.dump());
  folder.write("pytorch_model.bin", testing_support::torch_bytes(files.tensors));
  const std::unique_ptr<Eagle3Checkpoint> pickled = open_eagle3(folder.path(), eagle3_target()),
                                          plain = open_small(files);
  EXPECT_EQ(pickled->target_ids(), plain->target_ids());
  ASSERT_EQ(pickled->tensors().size(), plain->tensors().size());
  for (const TensorInfo& info : plain->tensors()) {
    if (info.stored_type != "F32") continue;
    EXPECT_EQ(all_of(*pickled, info.name), all_of(*plain, info.name)) << info.name;
  }
}

TEST(Eagle3Checkpoint, HeadDimIsWhatTheRowsAre) {
  Eagle3Files files;
  EXPECT_EQ(open_small(files)->config().head_dim, 6);  // hidden / heads would be 4
  files.config["head_dim"] = 4;                        // and so do published configs say
  EXPECT_EQ(open_small(files)->config().head_dim, 6);
}

struct LayersCase {
  const char* name;
  const char* config;  // merged into the small head's
  LayerIds expected;
};
void PrintTo(const LayersCase& given, std::ostream* out) { *out << given.name; }

class Eagle3Layers : public ::testing::TestWithParam<LayersCase> {};

TEST_P(Eagle3Layers, AreWhereTheStatesEnter) {
  Eagle3Files files;
  files.config.update(json::parse(GetParam().config));
  EXPECT_EQ(open_small(files)->config().feature_layers, GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    Spellings, Eagle3Layers,
    ::testing::Values(
        LayersCase{"none", "{}", {2, 6, 9}},
        LayersCase{"empty", R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}})", {2, 6, 9}},
        LayersCase{"nothing", R"({"eagle_config": null, "eagle_aux_hidden_state_layer_ids": null})", {2, 6, 9}},
        LayersCase{"outputs", R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 4, 7]}})", {1, 5, 8}},
        LayersCase{
            "outputs_default", R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}})", {2, 6, 9}},
        LayersCase{
            "entered_in_its_place", R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}})", {2, 6, 9}},
        LayersCase{"flat", R"({"eagle_aux_hidden_state_layer_ids": [0, 4, 11]})", {0, 4, 11}},
        LayersCase{"flat_default", R"({"eagle_aux_hidden_state_layer_ids": [2, 6, 9]})", {2, 6, 9}},
        LayersCase{"outputs_in_its_place", R"({"eagle_aux_hidden_state_layer_ids": [1, 5, 8]})", {2, 6, 9}},
        LayersCase{"short_name", R"({"aux_hidden_state_layer_ids": [3, 5, 7]})", {3, 5, 7}}),
    [](const auto& given) { return given.param.name; });

TEST(Eagle3Checkpoint, ConfigOfSpeculators) {
  Eagle3Files files;
  json layer = files.config;
  layer.erase("draft_vocab_size");
  layer.update({{"model_type", "llama"}, {"rope_theta", 5e5}, {"max_position_embeddings", 4096}});
  files.config = {{"architectures", {"Eagle3DraftModel"}},
                  {"speculators_model_type", "eagle3"},
                  {"draft_vocab_size", 5},
                  {"norm_before_residual", true},
                  {"target_hidden_size", nullptr},
                  {"eagle_aux_hidden_state_layer_ids", {1, 4, 10}},
                  {"tie_word_embeddings", false},
                  {"transformer_layer_config", layer}};
  files.tensors["embed_tokens.weight"] = f32_tensor("embed_tokens.weight", {20, 8});
  files.tensors["verifier_norm.weight"] = f32_tensor("norm", {8});
  const Eagle3Config c = open_small(files)->config();
  EXPECT_TRUE(c.norm_before_residual);
  EXPECT_EQ(c.rope.theta, 5e5);
  EXPECT_EQ(c.max_positions, 4096);
  EXPECT_EQ(c.vocab, 5);
  EXPECT_EQ(c.feature_layers, (LayerIds{1, 4, 10}));
  EXPECT_FALSE(c.own_embedding);  // a frozen copy of the target's
  files.config["embed_requires_grad"] = true;
  EXPECT_TRUE(open_small(files)->config().own_embedding);
}

TEST(Eagle3Checkpoint, ConfigDefaultsAndRope) {
  Eagle3Files files;
  Eagle3Config c = open_small(files)->config();
  EXPECT_EQ(c.rope.theta, 10000);
  EXPECT_EQ(c.max_positions, 512);  // the target's
  EXPECT_EQ(c.sliding_window, 0);
  files.config.update(json::parse(R"({"max_position_embeddings": 2048, "num_key_value_heads": null,
      "rope_scaling": {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}})"));
  files.config["num_key_value_heads"] = 1;
  c = open_small(files)->config();
  EXPECT_EQ(c.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(c.rope.factor, 32);
  EXPECT_EQ(c.rope.original_max_positions, 2048);
}

TEST(Eagle3Checkpoint, SlidingWindow) {
  Eagle3Files files;
  files.config["sliding_window"] = 256;
  EXPECT_EQ(open_small(files)->config().sliding_window, 256);
  files.config["use_sliding_window"] = false;  // Qwen's configs name a window that they do not use
  EXPECT_EQ(open_small(files)->config().sliding_window, 0);
  files.config["use_sliding_window"] = true;
  files.config["layer_types"] = {"full_attention"};
  EXPECT_EQ(open_small(files)->config().sliding_window, 0);
  files.config["layer_types"] = {"sliding_attention"};
  EXPECT_EQ(open_small(files)->config().sliding_window, 256);
}

TEST(Eagle3Checkpoint, NormsOfEagle31) {
  Eagle3Files files;
  EXPECT_FALSE(open_small(files)->config().fc_norm);
  for (const char* name : {"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"})
    files.tensors[name] = f32_tensor(name, {8});
  files.config["norm_output"] = true;
  EXPECT_TRUE(open_small(files)->config().fc_norm);
  EXPECT_TRUE(open_small(files)->config().norm_output);
}

TEST(Eagle3Checkpoint, TheWholeVocabulary) {
  Eagle3Files files;
  files.tensors.erase("d2t");
  files.tensors.erase("t2d");
  files.config["draft_vocab_size"] = 20;
  files.tensors["lm_head.weight"] = f32_tensor("lm_head.weight", {20, 8});
  std::unique_ptr<Eagle3Checkpoint> head = open_small(files);
  EXPECT_TRUE(head->config().own_head);
  ASSERT_EQ(head->target_ids().size(), 20u);
  EXPECT_EQ(head->target_ids()[19], 19);

  files.config.erase("draft_vocab_size");  // no vocabulary of its own and no lm_head: the target's
  EXPECT_TRUE(open_small(files)->config().own_head);
  files.tensors.erase("lm_head.weight");
  head = open_small(files);
  EXPECT_FALSE(head->config().own_head);
  EXPECT_EQ(head->config().vocab, 20);
}

TEST(Eagle3Checkpoint, AVocabularyThatOnlyD2tTellsOf) {
  Eagle3Files files;
  files.config.erase("draft_vocab_size");
  const std::unique_ptr<Eagle3Checkpoint> head = open_small(files);
  EXPECT_EQ(head->config().vocab, 5);
  EXPECT_TRUE(head->config().own_head);
  EXPECT_EQ(head->target_ids(), (std::vector<int32_t>{0, 1, 4, 5, 19}));
}

TEST(Eagle3Checkpoint, AHiddenSizeOfItsOwn) {
  ModelConfig target = eagle3_target();
  target.hidden = 4;
  Eagle3Files files;
  files.config["target_hidden_size"] = 4;
  files.tensors["fc.weight"] = f32_tensor("fc.weight", {8, 12});
  files.tensors["embed_tokens.weight"] = f32_tensor("embed_tokens.weight", {20, 8});
  const std::unique_ptr<Eagle3Checkpoint> head = open_small(files, target);
  EXPECT_TRUE(head->config().own_embedding);
  EXPECT_EQ(head->config().target_hidden, 4);
  EXPECT_EQ(head->require("fc.2.weight", {8, 4}).stored_type, "F32");
}

}  // namespace
}  // namespace headrace
