// Qwen3.5: a tiny model in a directory and in a GGUF file is one model, but for the order of its value heads; what the
// family refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "offload/device/device.h"
#include "runtime/base/input_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/decoder_tensors.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/weights.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/runtime/model/files/same_model.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::expect_error;

const std::string kDirectory = HEADRACE_TEST_DATA "/tiny/qwen35", kGguf = HEADRACE_TEST_DATA "/tiny/qwen35.gguf";
constexpr int64_t kKeyHeads = 2, kValueHeads = 4, kDim = 16;

std::vector<float> values_of(const Checkpoint& model, const std::string& name) {
  const TensorInfo* const info = model.find(name);
  EXPECT_NE(info, nullptr) << name;
  if (info == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(info->rows() * info->cols()));
  model.read_rows(*info, 0, info->rows(), DType::kF32, values.data());
  return values;
}

// The number that the value head has, which is in place `head` of a GGUF file.
int64_t grouped_head(int64_t head) { return head % kKeyHeads * (kValueHeads / kKeyHeads) + head / kKeyHeads; }

// Of a tensor with the value heads tiled, the same with them grouped: `count` x `width` values per head from `begin`
// on, and in each of `repeats` stretches of `stride`.
struct HeadPlaces {
  size_t begin, width, repeats = 1, stride = 0;
};
std::vector<float> grouped(const std::vector<float>& tiled, const HeadPlaces& places) {
  std::vector<float> out = tiled;
  for (size_t r = 0; r < places.repeats; ++r)
    for (int64_t head = 0; head < kValueHeads; ++head)
      for (size_t i = 0; i < places.width; ++i)
        out[r * places.stride + places.begin + static_cast<size_t>(grouped_head(head)) * places.width + i] =
            tiled[r * places.stride + places.begin + static_cast<size_t>(head) * places.width + i];
  return out;
}

// Which of a tensor's values belong to value heads; none: they do not.
std::optional<HeadPlaces> head_places(const std::string& name, int64_t hidden) {
  const auto h = static_cast<size_t>(hidden), dim = static_cast<size_t>(kDim);
  const size_t keys = 2 * static_cast<size_t>(kKeyHeads) * dim, values = static_cast<size_t>(kValueHeads) * dim;
  if (name.ends_with("in_proj_qkv.weight")) return HeadPlaces{keys * h, dim * h};
  if (name.ends_with("conv1d.weight")) return HeadPlaces{keys * 4, dim * 4};
  if (name.ends_with("in_proj_z.weight")) return HeadPlaces{0, dim * h};
  if (name.ends_with("in_proj_a.weight") || name.ends_with("in_proj_b.weight")) return HeadPlaces{0, h};
  if (name.ends_with("linear_attn.A") || name.ends_with("dt_bias")) return HeadPlaces{0, 1};
  if (name.ends_with("linear_attn.out_proj.weight")) return HeadPlaces{0, dim, h, values};
  return std::nullopt;
}

TEST(Qwen35, SpecOfTheDirectory) {
  const auto model = open_checkpoint(kDirectory);
  const ModelConfig& config = model->config();
  EXPECT_EQ(config.family, "qwen35");
  ASSERT_EQ(config.layer_count(), 8);
  const AttentionSpec attention = {
      .heads = 2, .kv_heads = 1, .head_dim = 32, .qk_norm = true, .rope_dims = 8, .gated_output = true};
  const DeltaNetSpec delta = {.k_heads = 2, .v_heads = 4, .k_dim = 16, .v_dim = 16, .conv = 4};
  for (int64_t i = 0; i < 8; ++i) {
    const LayerSpec& layer = config.layer(i);
    EXPECT_EQ(layer.ffn.width, 32);
    ASSERT_EQ(layer.has_attention(), i % 4 == 3);
    if (layer.has_attention()) {
      EXPECT_EQ(layer.attention(), attention);
    } else {
      EXPECT_EQ(layer.delta_net(), delta);
    }
  }
  ASSERT_TRUE(config.mtp);
  EXPECT_EQ(config.mtp->layer.attention(), attention);
  EXPECT_TRUE(config.mtp->own_norm);
  EXPECT_FALSE(config.tied_head || config.images);
  EXPECT_EQ(config.rope.theta, 1e7);
  EXPECT_EQ(config.rope_dims(), 32);  // of a row of the tables, of which 8 are rotated
  EXPECT_EQ(config.max_positions, 4096);
  EXPECT_EQ(config.kv_values(), 2 * 2 * 32);
  EXPECT_EQ(config.end_ids, std::vector<int32_t>{319});
}

TEST(Qwen35, BothFormatsGiveOneSpec) {
  const auto directory = open_checkpoint(kDirectory), gguf = open_checkpoint(kGguf);
  const ModelConfig &a = directory->config(), &b = gguf->config();
  std::vector<LayerSpec> layers = b.layers;
  for (LayerSpec& layer : layers) {
    if (layer.has_attention()) continue;
    DeltaNetSpec delta = layer.delta_net();
    EXPECT_TRUE(delta.tiled);
    delta.tiled = false;
    layer.mixer = delta;
  }
  EXPECT_EQ(layers, a.layers);
  EXPECT_EQ(b.mtp, a.mtp);
  testing_support::expect_same_sizes(*gguf, *directory);
  EXPECT_EQ(b.rope.scaling, a.rope.scaling);
}

TEST(Qwen35, BothFormatsHaveTheSameWeights) {
  const auto directory = open_checkpoint(kDirectory), gguf = open_checkpoint(kGguf);
  const ModelConfig& config = directory->config();
  const std::vector<DecoderTensor> tensors = decoder_tensors(config);
  EXPECT_EQ(directory->tensors().size(), tensors.size());  // nothing in the files that has no use
  EXPECT_EQ(gguf->tensors().size(), tensors.size());
  for (const DecoderTensor& tensor : tensors) {
    directory->require(tensor.name, tensor.shape);
    gguf->require(tensor.name, tensor.shape);
    const std::vector<float> expected = values_of(*directory, tensor.name);
    std::vector<float> actual = values_of(*gguf, tensor.name);
    if (const auto places = head_places(tensor.name, config.hidden)) actual = grouped(actual, *places);
    ASSERT_EQ(actual.size(), expected.size()) << tensor.name;
    const bool exponential = tensor.name.ends_with("linear_attn.A");  // by another library: one unit in the last place
    for (size_t i = 0; i < actual.size(); ++i)
      ASSERT_NEAR(actual[i], expected[i], exponential ? 1.2e-7f * std::abs(expected[i]) : 0.0f)
          << tensor.name << " at " << i;
  }
}

// The file's tensors by their own names.
class StoredFile {
 public:
  StoredFile() : file_(read_small_file(kDirectory + "/model.safetensors", 1 << 20)) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, file_.data(), sizeof bytes);
    header_ = json::parse(file_.substr(sizeof bytes, bytes));
    data_ = sizeof bytes + bytes;
  }
  const json& header() const { return header_; }
  std::string data() const { return file_.substr(data_); }
  std::vector<float> operator()(const std::string& name) const {
    const uint64_t begin = header_.at(name).at("data_offsets")[0], end = header_.at(name).at("data_offsets")[1];
    std::vector<float> values((end - begin) / sizeof(float));
    std::memcpy(values.data(), file_.data() + data_ + begin, end - begin);
    return values;
  }

 private:
  std::string file_;
  json header_;
  size_t data_ = 0;
};

// Heads of 32 rows of `cols`, of which 8 are rotated in pairs (j, j + 4), with the pairs at (j, j + 16).
std::vector<float> in_rotary_order(const std::vector<float>& stored, size_t cols) {
  std::vector<size_t> rows;
  for (size_t j = 0; j < 4; ++j) rows.push_back(j);
  for (size_t j = 8; j < 20; ++j) rows.push_back(j);
  for (size_t j = 4; j < 8; ++j) rows.push_back(j);
  for (size_t j = 20; j < 32; ++j) rows.push_back(j);
  std::vector<float> out;
  for (size_t head = 0; head < stored.size() / (32 * cols); ++head)
    for (const size_t row : rows)
      for (size_t i = 0; i < cols; ++i) out.push_back(stored[(head * 32 + row) * cols + i]);
  return out;
}

// What the file stores, of the tensors that the decoder has otherwise.
TEST(Qwen35, NormsGetOneAndAIsNegative) {
  const auto model = open_checkpoint(kDirectory);
  const StoredFile stored;
  const auto plus_one = [](std::vector<float> values) {
    for (float& value : values) value += 1.0f;
    return values;
  };
  for (const char* name : {"model.norm.weight", "model.layers.0.input_layernorm.weight", "mtp.norm.weight",
                           "model.layers.7.post_attention_layernorm.weight", "mtp.pre_fc_norm_embedding.weight",
                           "mtp.pre_fc_norm_hidden.weight", "mtp.layers.0.input_layernorm.weight"})
    EXPECT_EQ(values_of(*model, name), plus_one(stored(name))) << name;
  for (const char* name : {"model.layers.3.self_attn.q_norm.weight", "mtp.layers.0.self_attn.k_norm.weight"})
    EXPECT_EQ(values_of(*model, name), in_rotary_order(plus_one(stored(name)), 1)) << name;
  EXPECT_EQ(values_of(*model, "model.layers.0.linear_attn.norm.weight"),
            stored("model.layers.0.linear_attn.norm.weight"));
  std::vector<float> decay = stored("model.layers.0.linear_attn.A_log");
  for (float& value : decay) value = -std::exp(value);
  EXPECT_EQ(values_of(*model, "model.layers.0.linear_attn.A"), decay);
}

// q_proj has 32 rows of q and 32 of its gate for each of two heads.
TEST(Qwen35, RowsOfQAndItsGates) {
  const auto model = open_checkpoint(kDirectory);
  for (const std::string layer : {"model.layers.3.self_attn.", "mtp.layers.0.self_attn."}) {
    const std::vector<float> stored = StoredFile()(layer + "q_proj.weight");
    constexpr size_t kHalf = 32 * 48;
    std::vector<float> q, gate;
    for (size_t head = 0; head < 2; ++head) {
      const auto at = stored.begin() + static_cast<std::ptrdiff_t>(2 * head * kHalf);
      q.insert(q.end(), at, at + kHalf);
      gate.insert(gate.end(), at + kHalf, at + 2 * kHalf);
    }
    EXPECT_EQ(values_of(*model, layer + "q_proj.weight"), in_rotary_order(q, 48));
    EXPECT_EQ(values_of(*model, layer + "gate_proj.weight"), gate);
    EXPECT_EQ(values_of(*model, layer + "k_proj.weight"), in_rotary_order(StoredFile()(layer + "k_proj.weight"), 48));
  }
}

TEST(Qwen35, RangesOfRowsAgreeWithTheWhole) {
  for (const std::string& path : {kDirectory, kGguf}) {
    const auto model = open_checkpoint(path);
    for (const char* name : {"model.layers.3.self_attn.q_proj.weight", "model.layers.3.self_attn.gate_proj.weight"}) {
      const TensorInfo& info = model->require(name, {64, 48});
      const std::vector<float> whole = values_of(*model, name);
      std::vector<float> parts(whole.size(), -1);
      for (int64_t row = 0; row < 64; row += 7)
        model->read_rows(info, row, std::min<int64_t>(row + 7, 64), DType::kF32, &parts[static_cast<size_t>(row * 48)]);
      EXPECT_EQ(parts, whole) << name;
    }
  }
}

// Rotary positions of 8 of 32 dimensions: the other pairs have the frequency 0.
TEST(Qwen35, RopeTablesPassTheOtherDimensions) {
  const auto model = open_checkpoint(kDirectory);
  const ModelConfig& config = model->config();
  const RopeTable table = make_rope_table(
      config.rope, {.head_dim = 32, .max_positions = 4096, .rotary_dims = config.attention().rotary_dims()});
  const RopeTable small = make_rope_table(config.rope, 8, 4096);
  ASSERT_EQ(table.inv_freq.size(), 16u);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(table.inv_freq[i], i < 4 ? small.inv_freq[i] : 0.0f);
}

std::vector<float> floats_at(const void* data, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::memcpy(values.data(), data, values.size() * sizeof(float));
  return values;
}

// The vectors of DeltaNet are in f32, whatever the type of the others is.
TEST(Qwen35, LayersAreLoaded) {
  for (const std::string& path : {kDirectory, kGguf}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto model = open_checkpoint(path);
      const auto device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
      Weights weights = Weights::reserve(*model, *device, {dtype});
      ASSERT_TRUE(weights.load(*model, *device, nullptr, nullptr));
      EXPECT_EQ(weights.damage().tensors, 0);
      const auto expect = [&](const void* data, const std::vector<std::string>& names) {
        std::vector<float> values;
        for (const std::string& name : names) {
          const std::vector<float> more = values_of(*model, name);
          values.insert(values.end(), more.begin(), more.end());
        }
        ASSERT_NE(data, nullptr) << names.front();
        EXPECT_EQ(floats_at(data, static_cast<int64_t>(values.size())), values) << names.front();
      };
      const LayerWeights& delta = weights.layer(0);
      const std::string mixer = "model.layers.0.linear_attn.";
      EXPECT_EQ(delta.qkv.rows(), delta.spec.in_width());
      EXPECT_EQ(delta.qkv.rows(), 128 + 64 + 4 + 4);
      EXPECT_EQ(delta.output.rows(), 48);
      EXPECT_EQ(delta.output.cols, 64);
      expect(delta.conv, {mixer + "conv1d.weight"});
      expect(delta.decay, {mixer + "A"});
      expect(delta.dt_bias, {mixer + "dt_bias"});
      expect(delta.head_norm, {mixer + "norm.weight"});
      const LayerWeights& attention = weights.layer(3);
      EXPECT_EQ(attention.qkv.rows(), attention.spec.in_width());
      EXPECT_EQ(attention.qkv.rows(), 64 + 32 + 32 + 64);
      EXPECT_EQ(attention.conv, nullptr);
      ASSERT_NE(weights.mtp(), nullptr);
      EXPECT_EQ(weights.mtp()->fc.rows(), 48);
      EXPECT_EQ(weights.mtp()->fc.cols, 96);
      if (dtype != DType::kF32) continue;
      expect(delta.input_norm, {"model.layers.0.input_layernorm.weight"});
      expect(delta.qkv.parts[0].data, {mixer + "in_proj_qkv.weight", mixer + "in_proj_z.weight",
                                       mixer + "in_proj_b.weight", mixer + "in_proj_a.weight"});
      expect(delta.output.parts[0].data, {mixer + "out_proj.weight"});
      const std::string heads = "model.layers.3.self_attn.";
      expect(attention.qkv.parts[0].data,
             {heads + "q_proj.weight", heads + "k_proj.weight", heads + "v_proj.weight", heads + "gate_proj.weight"});
      expect(attention.k_norm, {heads + "k_norm.weight"});
      expect(weights.final_norm(), {"model.norm.weight"});
      expect(weights.mtp()->fc.parts[0].data, {"mtp.fc.weight"});
      expect(weights.mtp()->embedding_norm, {"mtp.pre_fc_norm_embedding.weight"});
      expect(weights.mtp()->hidden_norm, {"mtp.pre_fc_norm_hidden.weight"});
      expect(weights.mtp()->norm, {"mtp.norm.weight"});
      expect(weights.mtp()->layer.q_norm, {"mtp.layers.0.self_attn.q_norm.weight"});
    }
  }
}

json tiny_config() { return json::parse(read_small_file(kDirectory + "/config.json", 1 << 16)); }

ModelConfig parse(const json& config) { return parse_config_json(config.dump(), "a/config.json"); }

json with(json base, const std::string& changes) {
  const json patch = json::parse(changes);
  for (const auto& [key, value] : patch.items()) base[key] = value;
  return base;
}

json with_images(json text) {
  text.erase("architectures");
  return {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
          {"model_type", "qwen3_5"},
          {"text_config", text},
          {"tie_word_embeddings", true},
          {"vision_config", json::object()}};
}

TEST(Qwen35, ConfigInItsForms) {
  const ModelConfig flat = parse(tiny_config()), nested = parse(with_images(tiny_config()));
  EXPECT_EQ(nested.layers, flat.layers);
  EXPECT_EQ(nested.mtp, flat.mtp);
  EXPECT_TRUE(nested.images);
  EXPECT_FALSE(nested.tied_head);  // the text's key counts
  json short_form = tiny_config();
  short_form.erase("layer_types");
  EXPECT_EQ(parse(short_form).layers, flat.layers);
  short_form["full_attention_interval"] = 2;
  EXPECT_TRUE(parse(short_form).layer(1).has_attention());
  EXPECT_FALSE(parse(with(tiny_config(), R"({"mtp_num_hidden_layers": 0})")).mtp);
  json flat_rope = with(tiny_config(), R"({"rope_theta": 1e7, "partial_rotary_factor": 0.5})");
  flat_rope.erase("rope_parameters");
  EXPECT_EQ(parse(flat_rope).attention().rotary_dims(), 16);
}

TEST(Qwen35, ConfigRefusesByKeyAndValues) {
  const std::initializer_list<std::pair<const char*, std::vector<std::string>>> kRefusals = {
      {R"({"num_hidden_layers": 7})", {"layer_types holds 8 layers, but num_hidden_layers is 7"}},
      {R"({"layer_types": ["full_attention", "sliding_attention", "", "", "", "", "", ""]})",
       {"layer_types holds \"sliding_attention\" for layer 1"}},
      {R"({"layer_types": "linear"})", {"layer_types \"linear\" must be a list"}},
      {R"({"layer_types": ["linear_attention"], "num_hidden_layers": 1})", {"no layer with attention"}},
      {R"({"linear_num_value_heads": 3})", {"linear_num_value_heads 3", "linear_num_key_heads 2"}},
      {R"({"num_key_value_heads": 3})", {"num_attention_heads 2", "num_key_value_heads 3"}},
      {R"({"linear_conv_kernel_dim": 3})", {"linear_conv_kernel_dim 3 is not supported (4 is)"}},
      {R"({"linear_key_head_dim": 0})", {"linear_key_head_dim 0"}},
      {R"({"linear_key_head_dim": 12})", {"linear_key_head_dim 12 is not a multiple of 8 up to 128"}},
      {R"({"linear_value_head_dim": 264})", {"linear_value_head_dim 264 is not a multiple of 8 up to 256"}},
      {R"({"attn_output_gate": false})", {"attn_output_gate false is not supported (true is)"}},
      {R"({"output_gate_type": "sigmoid"})", {"output_gate_type \"sigmoid\" is not supported"}},
      {R"({"attention_bias": true})", {"attention_bias true"}},
      {R"({"mtp_num_hidden_layers": 2})", {"mtp_num_hidden_layers 2"}},
      {R"({"mtp_use_dedicated_embeddings": true})", {"mtp_use_dedicated_embeddings true"}},
      {R"({"rope_parameters": {"partial_rotary_factor": 0.3}})",
       {"partial_rotary_factor 0.3 of head_dim 32 is 9.6 dimensions"}},
      {R"({"rope_parameters": {"partial_rotary_factor": 1.5}})", {"partial_rotary_factor 1.5"}},
      {R"({"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]})", {"Qwen3NextForCausalLM"}},
      {R"({"model_type": "qwen4_exp", "architectures": null})", {"qwen4_exp", "block-sparse"}},
  };
  for (const auto& [changes, parts] : kRefusals) {
    SCOPED_TRACE(changes);
    expect_error(ExitCode::kBadInput, "a/config.json", parts, [&, c = changes] { parse(with(tiny_config(), c)); });
  }
  expect_error(ExitCode::kBadInput, "a/config.json", {"text_config.linear_conv_kernel_dim 2"},
               [] { parse(with_images(with(tiny_config(), R"({"linear_conv_kernel_dim": 2})"))); });
  expect_error(ExitCode::kBadInput, "a/config.json", {"text_config.model_type \"llama\""},
               [] { parse(with_images(with(tiny_config(), R"({"model_type": "llama"})"))); });
}

using Change = std::function<void(GgufFile*)>;

ModelConfig gguf_with(const Change& change) {
  const InputFile input(kGguf);
  GgufFile file = parse_gguf(input);
  change(&file);
  return gguf_config(file, input);
}

Change number(const std::string& key, uint32_t value) {
  return [=](GgufFile* file) { file->metadata[key] = {GgufType::kU32, false, 1, testing_support::raw_bytes(value)}; };
}

TEST(Qwen35, GgufRefusesByKeyAndValues) {
  const std::vector<std::pair<Change, std::vector<std::string>>> refusals = {
      {number("qwen35.ssm.conv_kernel", 3), {"qwen35.ssm.conv_kernel 3 is not supported (4 is)"}},
      {number("qwen35.ssm.inner_size", 48), {"qwen35.ssm.inner_size 48", "4 value heads of 16"}},
      {number("qwen35.ssm.group_count", 3), {"linear_num_value_heads 4", "linear_num_key_heads 3"}},
      {number("qwen35.block_count", 10), {"recurrent_layers holds 9 values, but qwen35.block_count is 10"}},
      {number("qwen35.nextn_predict_layers", 2), {"qwen35.nextn_predict_layers is 2"}},
      {number("qwen35.rope.dimension_count", 7), {"7"}},
      {number("qwen35.rope.dimension_count", 34), {"34", "32"}},
      {[](GgufFile* file) { file->metadata["qwen35.attention.recurrent_layers"].bytes[8] = 1; }, {"block 8"}},
      {[](GgufFile* file) { file->metadata["general.architecture"].bytes = "qwen3next"; },
       {"\"qwen3next\"", "Qwen3-Next"}},
  };
  for (const auto& [change, parts] : refusals) {
    SCOPED_TRACE(parts.front());
    expect_error(ExitCode::kBadInput, kGguf, parts, [&, c = change] { gguf_with(c); });
  }
  // Without the array each fourth layer is attention; without MTP's count all blocks are layers.
  const ModelConfig interval =
      gguf_with([](GgufFile* file) { file->metadata.erase("qwen35.attention.recurrent_layers"); });
  EXPECT_EQ(interval.layers, gguf_with([](GgufFile*) {}).layers);
}

// A copy of the directory whose safetensors header has `from` replaced by `to`, of the same length.
void write_changed(const TemporaryFolder& folder, const std::string& from, const std::string& to) {
  std::string file = read_small_file(kDirectory + "/model.safetensors", 1 << 20);
  const size_t at = file.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  file.replace(at, from.size(), to);
  folder.write("model.safetensors", file);
  folder.write("config.json", read_small_file(kDirectory + "/config.json", 1 << 16));
}

TEST(Qwen35, ShapesThatDisagreeAreNamed) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", read_small_file(kDirectory + "/model.safetensors", 1 << 20));
  for (const auto& [changes, parts] : std::initializer_list<std::pair<const char*, std::vector<std::string>>>{
           {R"({"linear_key_head_dim": 32})", {"linear_attn.in_proj_qkv.weight", "[128, 48]", "[192, 48]"}},
           {R"({"num_attention_heads": 1})", {"self_attn.q_proj.weight", "[128, 48]", "[64, 48]"}},
           {R"({"linear_num_value_heads": 8})", {"linear_attn.in_proj_qkv.weight", "[128, 48]", "[192, 48]"}}}) {
    SCOPED_TRACE(changes);
    folder.write("config.json", with(tiny_config(), changes).dump());
    expect_error(ExitCode::kBadInput, folder.path(), parts, [&] { open_checkpoint(folder.path()); });
  }
}

// Files that were saved without MTP's tensors still say that there is a block.
TEST(Qwen35, WithoutItsTensorsThereIsNoMtp) {
  const TemporaryFolder folder;
  write_changed(folder, "\"mtp.fc.weight\"", "\"old.fc.weight\"");
  EXPECT_FALSE(open_checkpoint(folder.path())->config().mtp);
}

// Of a model that takes images the decoder alone is read.
TEST(Qwen35, TensorsOfTheModelThatTakesImages) {
  const TemporaryFolder folder;
  const StoredFile stored;
  const json& header = stored.header();
  json renamed = json::object();
  for (const auto& [name, value] : header.items())
    renamed[name.starts_with("model.") ? "model.language_model." + name.substr(6) : name] = value;
  const size_t end = stored.data().size();
  renamed["model.visual.norm.weight"] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {end, end + 4}}};
  const std::string text = renamed.dump();
  folder.write("model.safetensors",
               testing_support::raw_bytes<uint64_t>(text.size()) + text + stored.data() + std::string(4, '\0'));
  folder.write("config.json", with_images(tiny_config()).dump());
  const auto plain = open_checkpoint(kDirectory), model = open_checkpoint(folder.path());
  EXPECT_TRUE(model->config().images);
  EXPECT_EQ(model->tensors().size(), plain->tensors().size());
  for (const DecoderTensor& tensor : decoder_tensors(plain->config()))
    EXPECT_EQ(values_of(*model, tensor.name), values_of(*plain, tensor.name)) << tensor.name;
}

}  // namespace
}  // namespace headrace
