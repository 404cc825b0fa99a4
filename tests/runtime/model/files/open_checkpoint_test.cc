// Whole models open: the reference directories, shapes, values, what a config says.

#include "runtime/model/files/open_checkpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "runtime/model/decoder_tensors.h"
#include "runtime/model/families/read_config.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/support/refusal.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

std::string tiny(const std::string& name) { return std::string(HEADRACE_TEST_DATA) + "/tiny/" + name; }

struct TinyCase {
  const char* name;
  const char* family;
  int64_t layers, kv_heads, head_dim;
  DType dtype;
  RopeScaling scaling;
  double theta;
  bool tied, qkv_bias, qk_norm;
};

void PrintTo(const TinyCase& tiny_case, std::ostream* out) { *out << tiny_case.name; }

class TinyModel : public testing::TestWithParam<TinyCase> {};

TEST_P(TinyModel, OpensAndReads) {
  const TinyCase& expected = GetParam();
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(tiny(expected.name));
  const ModelConfig& config = checkpoint->config();
  EXPECT_EQ(config.family, expected.family);
  EXPECT_EQ(config.layer_count(), expected.layers);
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.layers.front().attention().heads, 4);
  EXPECT_EQ(config.layers.front().attention().kv_heads, expected.kv_heads);
  EXPECT_EQ(config.layers.front().attention().head_dim, expected.head_dim);
  EXPECT_EQ(config.layers.front().ffn.width, 160);
  EXPECT_EQ(config.vocab, 512);
  EXPECT_EQ(config.max_positions, config.rope.scaling == RopeScaling::kLinear ? 8192 : 2048);
  EXPECT_EQ(config.rope.scaling, expected.scaling);
  EXPECT_EQ(config.rope.theta, expected.theta);
  EXPECT_EQ(config.tied_head, expected.tied);
  EXPECT_EQ(config.layers.front().attention().qkv_bias, expected.qkv_bias);
  EXPECT_EQ(config.layers.front().attention().qk_norm, expected.qk_norm);
  EXPECT_FALSE(config.layers.front().attention().output_bias);
  EXPECT_EQ(config.end_ids, std::vector<int32_t>{2});
  EXPECT_EQ(checkpoint->natural_dtype(), expected.dtype);
  EXPECT_EQ(checkpoint->format(), "safetensors");
  // Nothing in the file that a decoder has no use for, and nothing amiss.
  EXPECT_EQ(checkpoint->tensors().size(), decoder_tensors(config).size());
  for (const DecoderTensor& tensor : decoder_tensors(config)) {
    const TensorInfo& info = checkpoint->require(tensor.name, tensor.shape);
    std::vector<float> values(static_cast<size_t>(info.rows() * info.cols()), -1e30f);
    checkpoint->read_rows(info, 0, info.rows(), DType::kF32, values.data());
    for (const float value : values) ASSERT_LT(std::abs(value), 10.0f) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, TinyModel,
    testing::Values(
        TinyCase{"llama2", "llama", 4, 4, 16, DType::kF32, RopeScaling::kNone, 10000, false, false, false},
        TinyCase{"llama31", "llama", 4, 2, 16, DType::kF32, RopeScaling::kLlama3, 500000, false, false, false},
        TinyCase{"llama-linear", "llama", 4, 2, 16, DType::kF32, RopeScaling::kLinear, 10000, false, false, false},
        TinyCase{"llama-yarn", "llama", 4, 2, 16, DType::kF32, RopeScaling::kYarn, 10000, false, false, false},
        TinyCase{"mistral", "mistral", 4, 2, 16, DType::kF32, RopeScaling::kNone, 1e6, false, false, false},
        TinyCase{"ministral3", "ministral3", 2, 2, 32, DType::kBF16, RopeScaling::kYarn, 1e6, false, false, false},
        TinyCase{"mistral3", "mistral", 2, 2, 32, DType::kBF16, RopeScaling::kNone, 1e9, false, false, false},
        TinyCase{"phi3", "phi3", 2, 2, 16, DType::kBF16, RopeScaling::kNone, 250000, false, false, false},
        TinyCase{"qwen25", "qwen2", 4, 2, 16, DType::kF32, RopeScaling::kNone, 1e6, true, true, false},
        TinyCase{"qwen3", "qwen3", 4, 2, 32, DType::kF32, RopeScaling::kNone, 1e6, false, false, true},
        TinyCase{"seed-oss", "seed_oss", 2, 2, 32, DType::kBF16, RopeScaling::kNone, 1e7, false, true, false}),
    [](const auto& test) {
      std::string name = test.param.name;
      for (char& c : name)
        if (c == '-') c = '_';
      return name;
    });

using testing_support::raw_bytes;
using testing_support::safetensors_file;
using testing_support::small_config;
using testing_support::small_safetensors_header;

std::string small_weights() {
  size_t data_bytes = 0;
  const std::string header = small_safetensors_header(&data_bytes);
  return safetensors_file(header, data_bytes);
}

void write_small_model(const TemporaryFolder& folder, const std::string& under = "") {
  folder.write(under + "config.json", small_config());
  folder.write(under + "model.safetensors", small_weights());
}

// A tensor of its own beside the model's, which fills a second shard.
TEST(HfDirectory, ShardsAndStoredTypes) {
  const TemporaryFolder folder;
  folder.write("config.json", small_config());
  folder.write("model-00001-of-00002.safetensors", small_weights());
  const std::string types = R"({"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
                            R"("h":{"dtype":"F16","shape":[3],"data_offsets":[8,14]},)"
                            R"("unlisted":{"dtype":"U8","shape":[1],"data_offsets":[14,15]}})";
  std::string second = safetensors_file(types, 15);
  const uint16_t values[] = {0x3f80, 0xbf80, 0x4049, 0x0000, 0x3c00, 0xc000, 0x0001};  // bf16 x 4, f16 x 3
  second.replace(second.size() - 15, sizeof values, std::string(reinterpret_cast<const char*>(values), sizeof values));
  folder.write("model-00002-of-00002.safetensors", second);
  std::string map = R"("b":"model-00002-of-00002.safetensors","h":"model-00002-of-00002.safetensors")";
  for (const DecoderTensor& tensor : decoder_tensors(parse_config_json(small_config(), "")))
    map += str(",\"", tensor.name, "\":\"model-00001-of-00002.safetensors\"");
  folder.write("model.safetensors.index.json", str(R"({"metadata":{"total_size":1},"weight_map":{)", map, "}}"));

  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(folder.path() + "/");
  EXPECT_EQ(checkpoint->path(), folder.path());
  EXPECT_EQ(checkpoint->find("unlisted"), nullptr);
  const TensorInfo& b = checkpoint->require("b", {2, 2});
  EXPECT_EQ(b.stored_type, "BF16");
  EXPECT_EQ(b.stored_bytes, 8u);
  float row[2];
  checkpoint->read_rows(b, 1, 2, DType::kF32, row);
  EXPECT_EQ(row[0], 3.140625f);
  EXPECT_EQ(row[1], 0.0f);
  uint16_t as_f16[2];
  checkpoint->read_rows(b, 0, 1, DType::kF16, as_f16);
  EXPECT_EQ(as_f16[0], 0x3c00);
  EXPECT_EQ(as_f16[1], 0xbc00);
  float halves[3];
  checkpoint->read_rows(checkpoint->require("h", {3}), 0, 1, DType::kF32, halves);
  EXPECT_EQ(halves[1], -2.0f);
  EXPECT_EQ(halves[2], 0x1p-24f);
  uint16_t same[3];
  checkpoint->read_rows(checkpoint->require("h", {3}), 0, 1, DType::kF16, same);
  EXPECT_EQ(same[2], 1);
  EXPECT_EQ(checkpoint->natural_dtype(), DType::kF32);
}

TEST(HfDirectory, EndIdsOfBothFilesTogether) {
  const TemporaryFolder folder;
  write_small_model(folder);
  folder.write("generation_config.json", R"({"eos_token_id": [7, 6], "temperature": 0.6})");
  EXPECT_EQ(open_checkpoint(folder.path())->config().end_ids, (std::vector<int32_t>{6, 7}));
}

TEST(HfDirectory, ChatTemplateWhereverItIs) {
  const TemporaryFolder folder;
  write_small_model(folder);
  EXPECT_EQ(open_checkpoint(folder.path())->chat_template(), "");
  folder.write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(open_checkpoint(folder.path())->chat_template(), "one");
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "two"}]})");
  EXPECT_EQ(open_checkpoint(folder.path())->chat_template(), "two");
  folder.write("chat_template.jinja", "three");
  EXPECT_EQ(open_checkpoint(folder.path())->chat_template(), "three");
}

TEST(HfDirectory, ChatTemplateOfAProcessorOrNamed) {
  const TemporaryFolder folder;
  write_small_model(folder);
  folder.write("chat_template.json", R"({"chat_template": "zero"})");
  EXPECT_EQ(open_checkpoint(folder.path())->chat_template(), "zero");
  folder.write("tokenizer_config.json", R"({"chat_template": {"tool_use": "t", "default": "one"}})");
  EXPECT_EQ(open_checkpoint(folder.path())->chat_template(), "one");
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"}]})");
  testing_support::expect_error(ExitCode::kBadInput, folder.path() + "/tokenizer_config.json", {"tool_use"},
                                [&] { open_checkpoint(folder.path())->chat_template(); });
}

TEST(HfDirectory, NamesOfSpecialTokens) {
  const TemporaryFolder folder;
  write_small_model(folder);
  folder.write("tokenizer.json", R"({"model": {"vocab": {"a": 0}, "merges": []}, "decoder": {"type": "ByteLevel"}})");
  const auto names = [&] { return open_checkpoint(folder.path())->load_tokenizer().special_names(); };
  EXPECT_TRUE(names().empty());
  folder.write("special_tokens_map.json", R"({"eos_token": "c", "pad_token": {"content": "b"}})");
  EXPECT_EQ(names(), (SpecialNames{{"eos_token", "c"}, {"pad_token", "b"}}));
  folder.write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "a", "lstrip": false}, "eos_token": null, "unk_token": "u", "add_bos_token": true,
                   "image_token": "i", "extra_special_tokens": {"audio": "x"}, "model_max_length": 5})");
  EXPECT_EQ(names(), (SpecialNames{{"audio", "x"},
                                   {"bos_token", "a"},
                                   {"eos_token", "c"},
                                   {"image_token", "i"},
                                   {"pad_token", "b"},
                                   {"unk_token", "u"}}));
  folder.write("tokenizer_config.json",
               R"({"bos_token": "a", "added_tokens_decoder": {}})");  // then the map is not read
  EXPECT_EQ(names(), (SpecialNames{{"bos_token", "a"}}));
}

TEST(HfDirectory, MissingTokenizerIsNamed) {
  const TemporaryFolder folder;
  write_small_model(folder);
  try {
    open_checkpoint(folder.path())->load_tokenizer();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("tokenizer.json"), std::string::npos) << error.what();
  }
}

TEST(HfDirectory, ADirectoryOfGgufsSaysSo) {
  const TemporaryFolder folder;
  folder.write("some.gguf", "GGUF");
  try {
    open_checkpoint(folder.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("some.gguf"), std::string::npos) << error.what();
  }
}

TEST(HubCache, FindsTheSnapshotOfMain) {
  const TemporaryFolder folder;
  const std::string repository = "hub/models--org--some.Model-1/";
  write_small_model(folder, repository + "snapshots/abc123/");
  folder.write(repository + "refs/main", "abc123\n");
  const std::string snapshot = folder.path() + "/" + repository + "snapshots/abc123";
  const ScopedVariable home("HOME", folder.path()), xdg("XDG_CACHE_HOME", "");
  {
    const ScopedVariable cache("HF_HUB_CACHE", folder.path() + "/hub"), hf_home("HF_HOME", "/nowhere");
    EXPECT_EQ(open_checkpoint("org/some.Model-1")->path(), snapshot);
  }
  const ScopedVariable cache("HF_HUB_CACHE", "");
  {
    const ScopedVariable hf_home("HF_HOME", folder.path());
    EXPECT_EQ(open_checkpoint("org/some.Model-1")->path(), snapshot);
  }
  const ScopedVariable hf_home("HF_HOME", "");
  try {
    open_checkpoint("org/other");
    FAIL();
  } catch (const Error& error) {  // it says where it looked
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find(folder.path() + "/.cache/huggingface/hub/models--org--other"),
              std::string::npos)
        << error.what();
  }
  const ScopedVariable no_home("HOME", "");  // and not in the folder that it was started in
  try {
    open_checkpoint("org/other");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("HOME, under which the hub cache lies, is not set"), std::string::npos)
        << error.what();
    EXPECT_EQ(std::string(error.what()).find("./.cache"), std::string::npos) << error.what();
  }
}

TEST(HubCache, SaysHowToDownloadWhatIsNotThere) {
  const TemporaryFolder folder;
  const ScopedVariable cache("HF_HUB_CACHE", folder.path());
  testing_support::expect_error(ExitCode::kBadInput, "org/other", {"Download it: hf download org/other"},
                                [] { open_checkpoint("org/other"); });
}

// A repository often has a file for each type of weights.
TEST(HubCache, ASnapshotOfGgufFilesIsItsOnlyOneOrAChoice) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const ScopedVariable cache("HF_HUB_CACHE", folder.path());
  const std::string snapshot = folder.path() + "/models--org--m/snapshots/abc";
  folder.write("models--org--m/snapshots/abc/config.json", "{}");
  folder.write("models--org--m/snapshots/abc/mmproj-f16.gguf", "the part that reads images");
  fs::copy_file(HEADRACE_TEST_DATA "/tiny/qwen35.gguf", snapshot + "/m-Q4_K_M.gguf");
  EXPECT_EQ(open_checkpoint("org/m")->path(), snapshot + "/m-Q4_K_M.gguf");
  folder.write("models--org--m/snapshots/abc/m-Q8_0.gguf", "GGUF");
  testing_support::expect_error(
      ExitCode::kBadInput, snapshot,
      {"has 2 GGUF models", "\n  " + snapshot + "/m-Q4_K_M.gguf\n  " + snapshot + "/m-Q8_0.gguf"},
      [] { open_checkpoint("org/m"); });
  EXPECT_EQ(open_checkpoint(snapshot + "/m-Q4_K_M.gguf")->path(), snapshot + "/m-Q4_K_M.gguf");
}

// A model in PyTorch's files is not the GGUF model of a folder below it.
TEST(HubCache, AGgufFileBelowAnotherModelIsNotOpened) {
  for (const char* const weights : {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.safetensors"}) {
    const TemporaryFolder folder;
    folder.write("config.json", "{}");
    folder.write("gguf/.keep", "");
    std::filesystem::copy_file(HEADRACE_TEST_DATA "/tiny/qwen35.gguf", folder / "gguf/m.gguf");
    EXPECT_EQ(open_checkpoint(folder.path())->path(), folder / "gguf/m.gguf");
    folder.write(weights, "x");
    EXPECT_THROW(open_checkpoint(folder.path()), Error) << weights;
  }
}

TEST(HubCache, RefusesRevisionsThatLeadAstray) {
  const TemporaryFolder folder;
  const ScopedVariable cache("HF_HUB_CACHE", folder.path());
  for (const char* revision : {"../../../etc", "", "a/b", "gone"}) {
    folder.write("models--org--m/refs/main", revision);
    try {
      open_checkpoint("org/m");
      ADD_FAILURE() << revision;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      EXPECT_NE(std::string(error.what()).find(revision), std::string::npos) << error.what();
    }
  }
}

// A model that was fetched by revision has no refs/main.
TEST(HubCache, TheOnlySnapshotNeedsNoName) {
  const TemporaryFolder folder;
  const ScopedVariable cache("HF_HUB_CACHE", folder.path());
  const std::string snapshots = folder.path() + "/models--org--m/snapshots/";
  write_small_model(folder, "models--org--m/snapshots/abc/");
  EXPECT_EQ(open_checkpoint("org/m")->path(), snapshots + "abc");
  write_small_model(folder, "models--org--m/snapshots/def/");
  testing_support::expect_error(ExitCode::kBadInput, folder.path(), {"refs/main", snapshots + "abc", snapshots + "def"},
                                [] { open_checkpoint("org/m"); });
  folder.write("models--org--m/refs/main", "gone");  // another revision is another model
  testing_support::expect_error(ExitCode::kBadInput, folder.path(), {"gone", snapshots + "abc", snapshots + "def"},
                                [] { open_checkpoint("org/m"); });
}

TEST(HubCache, ADirectoryOfThatNameWins) {
  const TemporaryFolder folder;
  const ScopedVariable cache("HF_HUB_CACHE", folder.path() + "/hub");
  folder.write("hub/models--org--m/refs/main", "gone");
  write_small_model(folder, "org/m/");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  EXPECT_EQ(open_checkpoint("org/m")->path(), "org/m");
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace headrace
