// Models that are no models: what is not there, not a file, or a directory whose companions are broken.
// Each ends in an Error that names the file and the value, and none touches memory it should not (this runs under ASan
// and UBSan too).
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/runtime/model/files/hostile.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using namespace testing_support;

constexpr const char* kLfsPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 269060552\n";

TEST(HostileDirectory, WhatIsNotAModel) {
  const TemporaryFolder folder;
  expect_refused("nothing there", folder / "none", "none", "no such file or directory");
  expect_refused("an empty argument", "", "--model", "is empty");
  expect_refused("a NUL in the argument", std::string("a\0b", 3), "a\\x00b", "NUL");
  expect_refused("a file within a file", folder.write("f", "x") + "/config.json", "f/config.json", "no such");
  expect_refused("an empty directory", folder.path(), folder.path(), "config.json");
  expect_refused("an empty file", folder.write("empty.gguf", ""), "empty.gguf", "0 bytes");
  expect_refused("a file of another format", folder.write("x.bin", "PK\x03\x04zip"), "x.bin", "PK\\x03\\x04zip");
  expect_refused("a bare safetensors file", folder.write("m.safetensors", safetensors_file("{}", 0)), "m.safetensors",
                 "not a GGUF file");
  ASSERT_EQ(::mkfifo((folder / "pipe.gguf").c_str(), 0600), 0);
  expect_refused("a pipe", folder / "pipe.gguf", "pipe.gguf", "not a regular file");
  ASSERT_EQ(::symlink("loop", (folder / "loop").c_str()), 0);
  expect_refused("a link to itself", folder / "loop", "loop", "Too many levels of symbolic links");
  ASSERT_EQ(::symlink("gone.gguf", (folder / "dangling.gguf").c_str()), 0);
  expect_refused("a link to nothing", folder / "dangling.gguf", "dangling.gguf",
                 "is a link to gone.gguf, which does not exist");
  expect_refused("a git-LFS pointer", folder.write("lfs.gguf", kLfsPointer), "lfs.gguf", "git lfs pull");
  if (::geteuid() != 0) {
    const std::string secret = folder.write("secret.gguf", "GGUF");
    ASSERT_EQ(::chmod(secret.c_str(), 0), 0);
    expect_refused("an unreadable file", secret, "secret.gguf", "Permission denied");
  }
}

TEST(HostileDirectory, Configs) {
  struct ConfigRow {
    const char* label;
    std::string text;
    const char* expected;
  };
  const ConfigRow kRows[] = {
      {"empty", "", "not valid JSON"},
      {"cut", small_config().substr(0, 100), "not valid JSON"},
      {"bad UTF-8", "{\"a\": \"\xc3\x28\"}", "not valid JSON"},
      {"NUL bytes", std::string(64, '\0'), "not valid JSON"},
      {"a list", "[1, 2]", "[1,2]"},
      {"a number", "17", "17"},
      {"deep", "{\"a\":" + deep("[", "]", 200000) + "}", "deeper than 64"},
      {"a number beyond double", "{\"hidden_size\": 1e999}", "not valid JSON"},
      {"17 MiB", std::string(17 << 20, ' '), "17825792 bytes"},
      {"an empty object", "{}", "architectures"},
  };
  for (const ConfigRow& row : kRows) {
    const TemporaryFolder folder;
    folder.write("config.json", row.text);
    expect_refused(row.label, folder.path(), "config.json", row.expected);
  }
  const TemporaryFolder folder;
  ASSERT_EQ(::mkdir((folder / "config.json").c_str(), 0700), 0);
  expect_refused("config.json is a directory", folder.path(), "config.json", "is a directory");
}

TEST(HostileDirectory, WeightsAndCompanions) {
  size_t data_bytes = 0;
  const std::string header = small_safetensors_header(&data_bytes), weights = safetensors_file(header, data_bytes);
  const auto refused = [&](const char* label, const std::string& file, const std::string& text, const char* expected) {
    const TemporaryFolder folder;
    folder.write("config.json", small_config());
    folder.write("model.safetensors", weights);
    folder.write(file, text);
    expect_refused(label, folder.path(), file, expected);
  };
  refused("generation_config with a bad id", "generation_config.json", R"({"eos_token_id": [6, 8]})", "eos_token_id 8");
  refused("generation_config cut", "generation_config.json", "{", "not valid JSON");
  refused("template of a wrong type", "tokenizer_config.json", R"({"chat_template": 3})", "chat_template 3");
  refused("tokenizer_config deep", "tokenizer_config.json", "{\"a\":" + deep("[", "]", 5000) + "}", "deeper");
  for (const char* name : {"config.json", "model.safetensors", "tokenizer_config.json"}) {
    refused("a git-LFS pointer", name, kLfsPointer, "is a git-LFS pointer");
    const TemporaryFolder linked;  // as a hub snapshot whose blobs were removed
    linked.write("config.json", small_config());
    linked.write("model.safetensors", weights);
    std::filesystem::remove(linked / name);
    std::filesystem::create_symlink("../../blobs/0123", linked / name);
    expect_refused("a link to nothing", linked.path(), name, "is a link to ../../blobs/0123, which does not exist");
  }
  const TemporaryFolder bare;
  bare.write("config.json", small_config());
  expect_refused("no weights", bare.path(), bare.path(), "model.safetensors.index.json");
  bare.write("pytorch_model.bin", "x");
  expect_refused("pickles only", bare.path(), bare.path(), "PyTorch");
  ASSERT_EQ(::mkdir((bare / "model.safetensors").c_str(), 0700), 0);
  expect_refused("weights are a directory", bare.path(), "model.safetensors", "is a directory");
}

// A decoder under both of its names, without a layer's tensor, or fused to another shape.
TEST(HostileDirectory, TensorsOfADecoderAmongOthers) {
  size_t data_bytes = 0;
  const std::string header = small_safetensors_header(&data_bytes);
  const auto named = [&](const std::string& prefix) {
    std::string text = header;
    for (size_t at = 0; (at = text.find("\"model.", at)) != std::string::npos; at += prefix.size() + 1)
      text.replace(at, 7, "\"" + prefix);
    return text;
  };
  const std::string images = R"({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": )";
  std::string text = small_config();
  text.replace(text.find("[\"LlamaForCausalLM\"]"), 20, "null").replace(text.find("\"llama\""), 7, "\"mistral\"");
  const std::string config = images + text + "}";
  const auto write = [&](const TemporaryFolder& folder, const std::string& weights) {
    folder.write("config.json", config);
    folder.write("model.safetensors", safetensors_file(weights, data_bytes));
    return folder.path();
  };
  for (const char* prefix : {"language_model.model.", "model.language_model."}) {
    const TemporaryFolder folder;
    EXPECT_NO_THROW(open_and_read(write(folder, named(prefix)))) << prefix;
  }
  const TemporaryFolder plain, twice, headless;
  const std::string untied = config.substr(0, config.size() - 1) + ", \"tie_word_embeddings\": false}";
  write(headless, named("model.language_model."));
  headless.write("config.json", untied);
  expect_refused("no head", headless.path(), headless.path(), "lacks the tensor lm_head.weight");
  expect_refused("without a prefix", write(plain, header), plain.path(), "lacks the tensor model.embed_tokens.weight");
  std::string both = named("language_model.model.");
  const std::string norm = "\"language_model.model.layers.0.input_layernorm.weight\"";
  both.replace(both.find(norm), norm.size(), "\"model.language_model.norm.weight\"");
  expect_refused("both prefixes", write(twice, both), twice.path(), "two tensors named \"model.norm.weight\"");
}

TEST(HostileDirectory, FusedTensors) {
  const TemporaryFolder folder;
  std::string config = small_config();
  config.replace(config.find("LlamaForCausalLM"), 16, "Phi3ForCausalLM")
      .replace(config.find("\"llama\""), 7, "\"phi3\"");
  folder.write("config.json", config);
  folder.write("model.safetensors",
               safetensors_file(R"({"model.layers.0.mlp.gate_up_proj.weight":{"dtype":"F32","shape":[0,32],)"
                                R"("data_offsets":[0,0]}})",
                                0));
  expect_refused("no rows", folder.path(), folder.path(),
                 "gate_up_proj.weight has the shape [0, 32]; its config asks for [64, 32]");
  folder.write("model.safetensors",
               safetensors_file(R"({"model.layers.0.self_attn.qkv_proj.weight":{"dtype":"F32","shape":[63,32],)"
                                R"("data_offsets":[0,8064]}})",
                                8064));
  expect_refused("a row too few", folder.path(), folder.path(),
                 "qkv_proj.weight has the shape [63, 32]; its config asks for [64, 32]");
}

TEST(HostileDirectory, Indices) {
  struct IndexRow {
    const char* label;
    const char* text;
    const char* expected;
  };
  const IndexRow kRows[] = {
      {"no map", "{}", "weight_map"},
      {"map is a list", R"({"weight_map": []})", "weight_map"},
      {"absent shard", R"({"weight_map": {"t": "gone.safetensors"}})", "gone.safetensors"},
      {"a path upwards", R"({"weight_map": {"t": "../../etc/passwd"}})", "../../etc/passwd"},
      {"an absolute path", R"({"weight_map": {"t": "/etc/passwd"}})", "/etc/passwd"},
      {"dots", R"({"weight_map": {"t": ".."}})", "\"..\""},
      {"no name", R"({"weight_map": {"t": ""}})", "\"\""},
      {"a NUL in a name", "{\"weight_map\": {\"t\": \"a\\u0000b\"}}", "not a file name"},
      {"a number", R"({"weight_map": {"t": 5}})", "5"},
      {"a tensor twice", R"({"weight_map": {"t": "a", "t": "b"}})", "\"t\" occurs twice"},
      {"bad JSON", R"({"weight_map": {)", "not valid JSON"},
  };
  for (const IndexRow& row : kRows) {
    const TemporaryFolder folder;
    folder.write("config.json", small_config());
    folder.write("model.safetensors.index.json", row.text);
    expect_refused(row.label, folder.path(), "model.safetensors.index.json", row.expected);
  }
  const TemporaryFolder folder;
  folder.write("config.json", small_config());
  folder.write("a.safetensors", safetensors_file("{}", 0));
  folder.write("model.safetensors.index.json", R"({"weight_map": {"model.norm.weight": "a.safetensors"}})");
  expect_refused("a shard that lacks its tensor", folder.path(), "a.safetensors", "model.norm.weight");
}

}  // namespace
}  // namespace headrace
