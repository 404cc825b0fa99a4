#include "tests/cli/tiny_model.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace headrace {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string utf8(unsigned code_point) {  // below U+0800
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 63))};
}

// GPT-2's names for bytes: those that print stand for themselves, the others follow from U+0100 on.
json byte_vocabulary(int tokens) {
  json vocabulary = json::object();
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    vocabulary[utf8(prints ? byte : next++)] = byte;
  }
  for (int id = 256; id < tokens; ++id) vocabulary["w" + std::to_string(id)] = id;
  return vocabulary;
}

json mark(int id, const std::string& text) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

// The last two ids are marks.
json tokenizer(int vocab) {
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", false},
                {"vocab", byte_vocabulary(vocab - 2)},
                {"merges", json::array()}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {mark(vocab - 2, "<|im_start|>"), mark(vocab - 1, "<|im_end|>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", model}};
}

void write_model(const std::string& name, const std::string& folder) {
  const fs::path source = fs::path(HEADRACE_TEST_DATA) / "tiny" / name;
  fs::create_directories(folder);
  fs::copy_file(source / "model.safetensors", folder + "/model.safetensors", fs::copy_options::overwrite_existing);
  std::ifstream in(source / "config.json");
  json config = json::parse(in);
  config["max_position_embeddings"] = 1000000;
  const int vocab = config["vocab_size"].get<int>();
  config["eos_token_id"] = vocab - 1;
  std::ofstream(folder + "/config.json") << config.dump(1);
  std::ofstream(folder + "/tokenizer.json") << tokenizer(vocab).dump(1);
}

}  // namespace

void write_tiny_model(const std::string& folder) { write_model("llama2", folder); }
void write_tiny_hybrid(const std::string& folder) { write_model("qwen35", folder); }

}  // namespace headrace
