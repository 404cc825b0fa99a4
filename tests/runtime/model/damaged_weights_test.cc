// Weights that are not finite are found by loading, and an engine refuses them unless it is told to use them. Files
// that are shortened while they are read are an Error that names them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "runtime/draft/open/open_draft.h"
#include "runtime/engine/engine.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/weights.h"
#include "runtime/prefix/cache_key.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/support/refusal.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"
#include "tests/support/weights_file.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using testing_support::expect_error;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class DamagedWeights : public ::testing::Test {
 protected:
  // A copy of a tiny model in the folder.
  std::string copy(const std::string& name) const {
    fs::create_directories(folder_ / name);
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(testing::tiny_model("llama31") + "/" + file, folder_ / name + "/" + file);
    return folder_ / name;
  }
  static std::vector<std::string> load(const std::string& model, DType dtype, int threads = 2,
                                       WeightPolicy policy = WeightPolicy::kKeep) {
    return testing::LoadedModel(model, dtype, DeviceChoice::kCpu, threads, 0, policy).weights.damage().lines;
  }
  // One line that begins with the file and has all the parts.
  static void expect_damage(const std::vector<std::string>& damage, const std::string& file,
                            const std::vector<std::string>& parts) {
    ASSERT_EQ(damage.size(), 1u);
    EXPECT_EQ(damage[0].find(file + ": "), 0u) << damage[0];
    for (const std::string& part : parts) EXPECT_NE(damage[0].find(part), std::string::npos) << damage[0];
  }
  // A GGUF file with a matrix of Q4_1, one of whose blocks has this scale.
  std::string file_of_blocks(const std::string& name, std::string_view scale_bytes) const {
    testing_support::GgufWriter gguf = testing_support::small_gguf("llama");
    for (testing_support::GgufWriter::Tensor& tensor : gguf.tensors()) {
      if (tensor.name != "blk.0.ffn_up.weight") continue;
      tensor.type = 3;  // Q4_1: scale, minimum, 32 halves of bytes
      tensor.bytes.assign(32 * 20, '\x11');
      for (size_t row = 0; row < 32; ++row) tensor.bytes.replace(row * 20, 4, std::string("\x00\x3c\x00\x00", 4));
      tensor.bytes.replace(6 * 20, 2, scale_bytes);
      tensor.bytes[6 * 20 + 4 + 3] = '\x21';  // two in row 6, column 19
    }
    return folder_.write(name, gguf.finish());
  }
  // An EAGLE-3 head of llama31 with a NaN.
  std::string broken_head() const {
    testing_support::DraftFiles head = testing_support::tiny_eagle3_head();
    head.tensors.at("fc.weight").bytes.replace(8, 4, reinterpret_cast<const char*>(&kNan), 4);
    fs::create_directories(folder_ / "broken_head");
    head.write(folder_ / "broken_head");
    return folder_ / "broken_head";
  }
  const TemporaryFolder folder_;
};

TEST_F(DamagedWeights, NameFileTensorAndPlace) {
  struct Case {
    const char* tensor;
    int64_t row, col;
    float value;
    const char* what;
  };
  int number = 0;
  for (const Case& c : {Case{"model.embed_tokens.weight", 511, 63, kNan, "NaN at row 511, column 63"},
                        Case{"model.layers.2.self_attn.k_proj.weight", 0, 0, kInfinity, "infinity at row 0, column 0"},
                        Case{"model.layers.3.mlp.down_proj.weight", 63, 159, -kInfinity, "-infinity at row 63, column"},
                        Case{"model.norm.weight", 0, 5, -kNan, "NaN at row 0, column 5"},
                        Case{"lm_head.weight", 17, 1, kInfinity, "infinity at row 17, column 1"}}) {
    const std::string model = copy(std::to_string(number++)), file = model + "/model.safetensors";
    EXPECT_TRUE(load(model, DType::kF32).empty());
    testing_support::set_weights(file, c.tensor, c.row, c.col, {c.value});
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int threads : {1, 3}) {
        expect_damage(load(model, dtype, threads), file,
                      {c.tensor, c.what, str("stored as F32, read as ", dtype_name(dtype))});
      }
    }
  }
}

TEST_F(DamagedWeights, TheFirstValueIsNamedWhateverTheThreads) {
  const std::string model = copy("several"), file = model + "/model.safetensors";
  for (const int64_t row : {500, 300, 40}) {
    testing_support::set_weights(file, "model.embed_tokens.weight", row, 9, {kNan});
  }
  for (const int threads : {1, 2, 4}) {
    expect_damage(load(model, DType::kBF16, threads), file, {"NaN at row 40, column 9"});
  }
}

// A value that the file's type holds and the type it is read as does not.
TEST_F(DamagedWeights, ATypeThatIsTooSmallIsSaid) {
  const std::string model = copy("large"), file = model + "/model.safetensors";
  testing_support::set_weights(file, "lm_head.weight", 3, 4, {1e6f});
  EXPECT_TRUE(load(model, DType::kBF16).empty());
  expect_damage(load(model, DType::kF16), file, {"infinity at row 3, column 4", "read as f16", "--dtype bf16"});
}

// A scale of a block that is infinite (0 x infinity, too), or whose weights f16 cannot hold: found whether blocks are
// kept or dequantised.
TEST_F(DamagedWeights, OfBlocksInAGgufFile) {
  const std::string infinite = file_of_blocks("infinite.gguf", {"\x00\x7c", 2}),
                    large = file_of_blocks("large.gguf", {"\x00\x7a", 2});
  for (const WeightPolicy policy : {WeightPolicy::kKeep, WeightPolicy::kDequantise}) {
    for (const int threads : {1, 3}) {
      expect_damage(
          load(infinite, DType::kBF16, threads, policy), infinite,
          {"model.layers.0.mlp.up_proj.weight holds infinity at row 6, column 0", "stored as Q4_1, read as bf16"});
      EXPECT_TRUE(load(large, DType::kBF16, threads, policy).empty());
      expect_damage(
          load(large, DType::kF16, threads, policy), large,
          {"up_proj.weight holds infinity at row 6, column 19", "stored as Q4_1, read as f16", "--dtype bf16"});
    }
  }
}

// The place in the file, not in the block that the value spoils; and a weight that no block's scale can reach.
TEST_F(DamagedWeights, AreNamedWhereLoadingQuantisesThem) {
  const std::string model = copy("quantised"), file = model + "/model.safetensors";
  testing_support::set_weights(file, "model.layers.1.mlp.up_proj.weight", 6, 19, {kNan});
  const auto quantised = [&](DType dtype = DType::kBF16) { return load(model, dtype, 2, WeightPolicy::kQ8_0); };
  expect_damage(quantised(), file,
                {"model.layers.1.mlp.up_proj.weight holds NaN at row 6, column 19", "stored as F32"});
  testing_support::set_weights(file, "model.layers.1.mlp.up_proj.weight", 6, 19, {0.0f});
  testing_support::set_weights(file, "model.layers.1.mlp.up_proj.weight", 6, 51, {1e9f});
  EXPECT_TRUE(load(model, DType::kBF16).empty());
  const std::vector<std::string> overflow = quantised();
  ASSERT_FALSE(overflow.empty());
  expect_damage(overflow, file,
                {"model.layers.1.mlp.up_proj.weight cannot be quantised to Q8_0",
                 "the scale of the block at row 6, column 32 exceeds f16", "stored as F32; leave --weights out"});
  EXPECT_EQ(overflow[0].find("infinity"), std::string::npos) << overflow[0];
  // One that the scale reaches and the type of the computation does not.
  testing_support::set_weights(file, "model.layers.1.mlp.up_proj.weight", 6, 51, {1e5f});
  EXPECT_TRUE(quantised().empty());
  expect_damage(quantised(DType::kF16), file, {"up_proj.weight holds infinity at row 6, column 51", "--dtype bf16"});
}

TEST_F(DamagedWeights, OfManyTensorsTheFirstFewAreNamed) {
  const std::string model = copy("many"), file = model + "/model.safetensors";
  for (int layer = 0; layer < 3; ++layer) {
    for (const char* name : {"self_attn.k_proj", "mlp.down_proj"}) {
      testing_support::set_weights(file, str("model.layers.", layer, ".", name, ".weight"), 1, 2, {kNan});
    }
  }
  const std::vector<std::string> damage = load(model, DType::kF32);
  ASSERT_EQ(damage.size(), 4u);
  EXPECT_NE(damage[2].find("model.layers.1.self_attn.k_proj.weight holds NaN"), std::string::npos) << damage[2];
  EXPECT_EQ(damage[3], "3 more tensors hold NaN or infinity");
}

TEST_F(DamagedWeights, OfADraft) {
  const testing::LoadedModel target(testing::tiny_model("llama31"), DType::kF32);
  const auto load_draft = [&](SpecType type, const testing_support::DraftFiles& files, const std::string& name) {
    fs::create_directories(folder_ / name);
    files.write(folder_ / name);
    const std::unique_ptr<DraftModel> draft = open_draft({.type = type, .model = folder_ / name}, *target.device,
                                                         target.checkpoint->config(), target.weights);
    draft->load(nullptr, nullptr);
    return draft->damage().lines;
  };
  const auto broken = [](testing_support::DraftFiles files, const std::string& tensor) {
    files.tensors.at(tensor).bytes.replace(8, 4, reinterpret_cast<const char*>(&kNan), 4);
    return files;
  };
  const testing_support::DraftFiles head = testing_support::tiny_eagle3_head();
  EXPECT_TRUE(load_draft(SpecType::kEagle3, head, "head").empty());
  expect_damage(load_draft(SpecType::kEagle3, broken(head, "fc.weight"), "broken_head"),
                folder_ / "broken_head/model.safetensors", {"fc.0.weight", "NaN at row 0, column 2"});
  const testing_support::DraftFiles layer = testing_support::tiny_longspec_layer();
  EXPECT_TRUE(load_draft(SpecType::kLongSpec, layer, "layer").empty());
  expect_damage(load_draft(SpecType::kLongSpec, broken(layer, layer.tensors.rbegin()->first), "broken_layer"),
                folder_ / "broken_layer/model.safetensors", {"NaN at row 0, column 2"});
}

// ---- engines --------------------------------------------------------------------------------------------------------

class DamagedWeightsOfAnEngine : public DamagedWeights, public ::testing::WithParamInterface<DeviceChoice> {
 protected:
  EngineOptions options(const std::string& model, bool allow) const {
    EngineOptions options;
    options.model = model;
    options.device = {.choice = GetParam(), .threads = 2};
    options.want_tokenizer = false;
    options.dtype = DType::kBF16;
    options.allow_damaged_weights = allow;
    return options;
  }
  static GenerateResult generate(Engine& engine) {
    GenerateOptions run{.max_tokens = 4, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    return engine.generate({1, 2, 3}, run, nullptr);
  }
};

TEST_P(DamagedWeightsOfAnEngine, AreAnErrorIfABlocksScaleIsNotFinite) {
  for (const auto& [kind, scale] : {std::pair{"NaN", std::string_view("\x00\x7e", 2)},
                                    {"infinity", std::string_view("\x00\x7c", 2)},
                                    {"-infinity", std::string_view("\x00\xfc", 2)}}) {
    const std::string file = file_of_blocks(str(kind, ".gguf"), scale);
    for (const WeightPolicy policy : {WeightPolicy::kKeep, WeightPolicy::kDequantise}) {
      EngineOptions with = options(file, false);
      with.weights = policy;
      Engine engine(with);
      for (int time = 0; time < 2; ++time) {  // the second run finds the weights loaded
        expect_error(ExitCode::kBadInput, file,
                     {"has 1 damaged tensor: ", str("model.layers.0.mlp.up_proj.weight holds ", kind, " at row 6"),
                      "stored as Q4_1", "--allow-damaged-weights"},
                     [&] { generate(engine); });
      }
      with.allow_damaged_weights = true;
      Engine allowed(with);
      expect_error(ExitCode::kBadInput, file, {"the logits after the prompt's 3 tokens", "up_proj.weight holds"},
                   [&] { generate(allowed); });
    }
  }
}

// A row of the embedding that no text comes to: allowed, it harms nothing.
TEST_P(DamagedWeightsOfAnEngine, AreAnErrorInEveryType) {
  const std::string model = copy("unused"), file = model + "/model.safetensors";
  testing_support::set_weights(file, "model.embed_tokens.weight", 511, 7, {kNan});
  for (const WeightPolicy policy : {WeightPolicy::kKeep, WeightPolicy::kQ8_0}) {
    EngineOptions with = options(model, false);
    with.weights = policy;
    Engine engine(with);
    expect_error(ExitCode::kBadInput, model,
                 {"has 1 damaged tensor: " + file, "model.embed_tokens.weight holds NaN at row 511, column 7",
                  "--allow-damaged-weights"},
                 [&] { generate(engine); });
    with.allow_damaged_weights = true;
    Engine allowed(with);
    const GenerateResult result = generate(allowed);
    EXPECT_EQ(result.token_ids.size(), 4u);
    ASSERT_EQ(result.damage.size(), 1u);
    EXPECT_NE(result.damage[0].find("NaN at row 511, column 7"), std::string::npos) << result.damage[0];
  }
}

TEST_P(DamagedWeightsOfAnEngine, AreCounted) {
  const std::string model = copy("many");
  for (int layer = 0; layer < 4; ++layer) {
    for (const char* name : {"k_proj", "v_proj"}) {
      testing_support::set_weights(model + "/model.safetensors",
                                   str("model.layers.", layer, ".self_attn.", name, ".weight"), 1, 2, {kNan});
    }
  }
  Engine engine(options(model, false));
  expect_error(ExitCode::kBadInput, model, {"has 8 damaged tensors: ", "; 5 more tensors hold NaN or infinity"},
               [&] { generate(engine); });
}

TEST_P(DamagedWeightsOfAnEngine, OfItsDraftAreAnErrorToo) {
  EngineOptions with = options(testing::tiny_model("llama31"), false);
  with.draft = {.type = SpecType::kEagle3, .model = broken_head()};
  Engine engine(with);
  expect_error(ExitCode::kBadInput, with.draft.model,
               {"has 1 damaged tensor: ", "fc.0.weight holds NaN", "--allow-damaged-weights"},
               [&] { generate(engine); });
  with.allow_damaged_weights = true;
  Engine allowed(with);
  const GenerateResult result = generate(allowed);
  EXPECT_EQ(result.damage.size(), 1u);
  with.draft = {};
  Engine plain(with);
  EXPECT_EQ(result.token_ids, generate(plain).token_ids);
}

INSTANTIATE_TEST_SUITE_P(Devices, DamagedWeightsOfAnEngine, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& each) { return testing::device_name(each.param); });

// ---- files that are shortened ---------------------------------------------------------------------------------------

TEST_F(DamagedWeights, AFileThatIsShortenedWhileItIsReadIsSaid) {
  const std::string path = folder_.write("file", std::string(10000, 'x'));
  const InputFile file(path);
  EXPECT_EQ(file.text(9990, 10), "xxxxxxxxxx");
  fs::resize_file(path, 5000);
  EXPECT_EQ(file.text(0, 5000).size(), 5000u);
  expect_error(ExitCode::kBadInput, path, {"has 5000 bytes; it had 10000 when it was opened"},
               [&] { file.text(4000, 2000); });
}

TEST_F(DamagedWeights, AModelThatIsShortenedWhileItLoadsIsSaid) {
  const std::string model = copy("short"), tensors = model + "/model.safetensors";
  const std::string gguf = folder_.write("short.gguf", testing_support::small_gguf("llama").finish());
  const std::unique_ptr<Device> device = open_device({.choice = DeviceChoice::kCpu, .threads = 2});
  for (const auto& [path, file] : {std::pair{model, tensors}, std::pair{gguf, gguf}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::string whole = path == gguf ? folder_.read("short.gguf") : folder_.read("short/model.safetensors");
      const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(path);
      Weights weights = Weights::reserve(*checkpoint, *device, {dtype});
      fs::resize_file(file, whole.size() / 2);
      expect_error(ExitCode::kBadInput, file,
                   {str("has ", whole.size() / 2, " bytes; it had ", whole.size()), "shortened"},
                   [&] { weights.load(*checkpoint, *device, nullptr, nullptr); });
      EXPECT_FALSE(weights.loaded());
      expect_error(ExitCode::kBadInput, file, {"when it was opened"}, [&] { weights_fingerprint(*checkpoint, 2); });
      fs::resize_file(file, 0);
      if (path == gguf) {  // its tokenizer was read when it was opened
        EXPECT_EQ(checkpoint->load_tokenizer().eos(), 6);
        EXPECT_EQ(checkpoint->chat_template(), "{{ messages }}");
      }
      folder_.write(path == gguf ? "short.gguf" : "short/model.safetensors", whole);
    }
  }
}

}  // namespace
}  // namespace headrace
