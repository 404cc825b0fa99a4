// Model files that are cut, forged or not what they say: each ends in an Error that names the file and the value, and
// none touches memory it should not (this runs under ASan and UBSan too).
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <functional>

#include "runtime/model/checkpoint.h"
#include "tests/runtime/model/model_files.h"
#include "tests/support/temporary_directory.h"

namespace headrace {
namespace {

using namespace testing_support;

void open_and_read(const std::string& path) {
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(path);
  for (const TensorInfo& info : checkpoint->tensors()) {
    std::vector<char> out(static_cast<size_t>(info.rows() * info.cols()) * 4);
    checkpoint->read_rows(info, 0, info.rows(), DType::kF32, out.data());
  }
  checkpoint->chat_template();
}

// The message must hold the file's name and `expected`.
void expect_refused(const std::string& label, const std::string& path, const std::string& file,
                    const std::string& expected) {
  try {
    open_and_read(path);
    ADD_FAILURE() << label << ": accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ExitCode::kBadInput) << label << ": " << text;
    EXPECT_NE(text.find(file), std::string::npos) << label << " lacks the file: " << text;
    EXPECT_NE(text.find(expected), std::string::npos) << label << " lacks \"" << expected << "\": " << text;
    EXPECT_LT(text.size(), 2000u) << label;
  }
}

// ---- safetensors --------------------------------------------------------------------------------------------------

struct SafetensorsRow {
  const char* label;
  std::string bytes;
  const char* expected;
};

std::string one_tensor(const std::string& entry, size_t data_bytes) {
  return safetensors_file("{\"t\":" + entry + "}", data_bytes);
}

std::string deep(const std::string& open, const std::string& close, int levels) {
  std::string out;
  for (int i = 0; i < levels; ++i) out += open;
  out += "1";
  for (int i = 0; i < levels; ++i) out += close;
  return out;
}

std::vector<SafetensorsRow> safetensors_rows() {
  const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const auto two = [&](const char* a, const char* b, size_t bytes) {
    return safetensors_file(str(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)", a,
                                R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)", b, "}}"),
                            bytes);
  };
  return {
      {"empty", "", "0 bytes"},
      {"seven bytes", "1234567", "7 bytes"},
      {"header longer than the file", raw_bytes<uint64_t>(1000) + "{}", "1000 bytes"},
      {"header of 2^63", raw_bytes<uint64_t>(uint64_t{1} << 63) + "{}", "9223372036854775808"},
      {"header of 2^64 - 1", raw_bytes<uint64_t>(~uint64_t{0}) + "{}", "18446744073709551615"},
      {"no header", raw_bytes<uint64_t>(0), "'{'"},
      {"a zip file", "PK\x03\x04" + std::string(100, 'x'), "header is said to be"},
      {"header that is no object", safetensors_file("[1,2]", 0), "'{'"},
      {"cut JSON", safetensors_file(R"({"t":{"dtype":"F32")", 0), "not valid JSON"},
      {"NUL in the JSON", safetensors_file(std::string("{\"t\0\":1}", 8), 0), "not valid JSON"},
      {"bad UTF-8", safetensors_file("{\"\xff\xfe\":1}", 0), "not valid JSON"},
      {"text after the JSON", safetensors_file("{}x", 0), "not valid JSON"},
      {"deep arrays", one_tensor(deep("[", "]", 100000), 0), "deeper than 64"},
      {"deep objects", one_tensor(deep("{\"a\":", "}", 100000), 0), "deeper than 64"},
      {"a name twice", safetensors_file("{\"t\":" + good + ",\"t\":" + good + "}", 8), "\"t\" comes twice"},
      {"a key twice", one_tensor(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8), "twice"},
      {"entry is a number", one_tensor("7", 0), "7 must be an object"},
      {"no dtype", one_tensor(R"({"shape":[2],"data_offsets":[0,8]})", 8), "dtype"},
      {"dtype is a number", one_tensor(R"({"dtype":32,"shape":[2],"data_offsets":[0,8]})", 8), "dtype"},
      {"unknown dtype", one_tensor(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", 8), "\"F33\""},
      {"no shape", one_tensor(R"({"dtype":"F32","data_offsets":[0,8]})", 8), "shape is missing"},
      {"negative shape", one_tensor(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8), "[-2]"},
      {"fractional shape", one_tensor(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})", 8), "[2.5]"},
      {"shape is a string", one_tensor(R"({"dtype":"F32","shape":"2","data_offsets":[0,8]})", 8), "\"2\""},
      {"shape overflows", one_tensor(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", 8),
       "[4294967296,4294967296]"},
      {"shape overflows to the right size",
       one_tensor(R"({"dtype":"F32","shape":[2,9223372036854775809],"data_offsets":[0,8]})", 8), "9223372036854775809"},
      {"no offsets", one_tensor(R"({"dtype":"F32","shape":[2]})", 8), "data_offsets is missing"},
      {"one offset", one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[8]})", 8), "[8]"},
      {"negative offset", one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})", 8), "[-8,0]"},
      {"offsets reversed", one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8), "[8,0]"},
      {"offsets too few bytes", one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 8), "are 4 bytes"},
      {"offsets beyond the file", one_tensor(R"({"dtype":"F32","shape":[200],"data_offsets":[0,800]})", 8),
       "end at 800"},
      {"offsets near 2^64",
       one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[18446744073709551607,18446744073709551615]})", 8),
       "18446744073709551607"},
      {"overlap", two("[0,4]", "[2,6]", 6), "begin at 2"},
      {"same place", two("[0,4]", "[0,4]", 4), "begin at 0"},
      {"gap", two("[0,4]", "[6,10]", 10), "begin at 6"},
      {"gap at the start", one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})", 16), "begin at 8"},
      {"bytes left over", one_tensor(good, 9), "9 bytes of data"},
      {"bytes missing", one_tensor(good, 7), "7 bytes of data"},
      {"half a byte", one_tensor(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})", 1), "F4"},
      {"none of the model's tensors", one_tensor(good, 8), "model.embed_tokens.weight"},
  };
}

TEST(HostileSafetensors, EachIsRefused) {
  for (const SafetensorsRow& row : safetensors_rows()) {
    const TemporaryDirectory folder;
    folder.write("config.json", small_config());
    folder.write("model.safetensors", row.bytes);
    // What is amiss with the model rather than its file names the directory.
    const bool whole = std::string(row.expected).find("embed_tokens") != std::string::npos;
    expect_refused(row.label, folder.path(), whole ? folder.path() : "model.safetensors", row.expected);
  }
}

TEST(HostileSafetensors, CutOrLongerAnywhere) {
  size_t data_bytes = 0;
  const std::string header = small_safetensors_header(&data_bytes), whole = safetensors_file(header, data_bytes);
  const TemporaryDirectory folder;
  folder.write("config.json", small_config());
  folder.write("model.safetensors", whole);
  EXPECT_NO_THROW(open_and_read(folder.path()));
  for (size_t length = 0; length < whole.size(); length += length < header.size() + 16 ? 3 : 997) {
    folder.write("model.safetensors", std::string_view(whole).substr(0, length));
    EXPECT_THROW(open_and_read(folder.path()), Error) << length;
  }
  folder.write("model.safetensors", whole + "x");
  EXPECT_THROW(open_and_read(folder.path()), Error);
}

TEST(HostileSafetensors, AnyFlippedBitIsAnErrorOrHarmless) {
  size_t data_bytes = 0;
  const std::string header = small_safetensors_header(&data_bytes), whole = safetensors_file(header, data_bytes);
  const size_t header_bytes = whole.size() - data_bytes;
  const TemporaryDirectory folder;
  folder.write("config.json", small_config());
  size_t refused = 0, total = 0;
  for (size_t bit = 0; bit < header_bytes * 8; bit += 11, ++total) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    folder.write("model.safetensors", flipped);
    try {
      open_and_read(folder.path());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      ++refused;
    }
  }
  EXPECT_GT(refused * 10, total * 9) << refused << " of " << total;
}

TEST(HostileSafetensors, WrongTypesAndShapesOfRightFiles) {
  size_t data_bytes = 0;
  const std::string header = small_safetensors_header(&data_bytes);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string out = header;
    out.replace(out.find(from), from.size(), to);
    return safetensors_file(out, data_bytes);
  };
  const TemporaryDirectory folder;
  folder.write("config.json", small_config());
  folder.write("model.safetensors", replaced("\"F32\"", "\"I32\""));
  expect_refused("I32 weights", folder.path(), "model.safetensors", "I32");
  folder.write("model.safetensors", replaced("[8,32]", "[32,8]"));
  expect_refused("a transposed embedding", folder.path(), folder.path(), "[32, 8]");
  folder.write("model.safetensors", replaced("model.norm.weight", "model.nrom.weight"));
  expect_refused("a tensor with another name", folder.path(), folder.path(), "model.norm.weight");
}

// ---- GGUF ---------------------------------------------------------------------------------------------------------

struct GgufRow {
  const char* label;
  std::function<void(GgufWriter&)> forge;
  const char* expected;
};

GgufWriter::Tensor& tensor_of(GgufWriter& writer, const std::string& name) {
  for (GgufWriter::Tensor& tensor : writer.tensors())
    if (tensor.name == name) return tensor;
  ADD_FAILURE() << "no tensor " << name;
  return writer.tensors().front();
}

std::vector<GgufRow> gguf_rows() {
  using W = GgufWriter;
  const std::string norm = "output_norm.weight", embedding = "token_embd.weight";
  const uint64_t huge = uint64_t{1} << 60;
  const auto tensor = [](std::function<void(W::Tensor&)> change, std::string name) {
    return [=](W& w) { change(tensor_of(w, name)); };
  };
  const auto key = [](std::string name, uint32_t type, std::string bytes) {
    return [=](W& w) { w.add_raw(name, type, bytes); };
  };
  return {
      {"another magic", [](W& w) { w.magic = "GGML"; }, "GGML"},
      {"version 1", [](W& w) { w.version = 1; }, "version 1"},
      {"version 4", [](W& w) { w.version = 4; }, "version 4"},
      {"big-endian", [](W& w) { w.version = 3u << 24; }, "big-endian"},
      {"2^60 tensors", [=](W& w) { w.forged_tensors = huge; }, "1152921504606846976 tensors"},
      {"2^60 keys", [=](W& w) { w.forged_keys = huge; }, "1152921504606846976 keys"},
      {"2^64 - 1 tensors", [](W& w) { w.forged_tensors = ~uint64_t{0}; }, "18446744073709551615"},
      {"a tensor too many", [](W& w) { w.forged_tensors = w.tensors().size() + 1; }, "at byte"},
      {"a key too many", [](W& w) { w.forged_keys = 20; }, "at byte"},
      {"a key twice", [](W& w) { w.add_u32("llama.block_count", 1); }, "llama.block_count"},
      {"a key without a name", [](W& w) { w.add_u32("", 1); }, "a key of 0 bytes"},
      {"a key of 64 KiB", [](W& w) { w.add_u32(std::string(65536, 'k'), 1); }, "a key of 65536 bytes"},
      {"an unknown type of value", key("x", 13, "1234"), "unknown type 13"},
      {"a string of 2^63 bytes", key("x", 8, raw_bytes<uint64_t>(uint64_t{1} << 63)), "9223372036854775808"},
      {"an array of 2^61 u64", key("x", 9, raw_bytes<uint32_t>(10) + raw_bytes<uint64_t>(uint64_t{1} << 61)),
       "2305843009213693952 values"},
      {"an array of 2^60 strings", key("x", 9, raw_bytes<uint32_t>(8) + raw_bytes(huge)), "1152921504606846976 values"},
      {"an array of an unknown type", key("x", 9, raw_bytes<uint32_t>(99) + raw_bytes<uint64_t>(1)), "type 99"},
      {"an array of arrays", key("x", 9, raw_bytes<uint32_t>(9) + raw_bytes<uint64_t>(1)), "array of arrays"},
      {"a string array cut short",
       key("x", 9, raw_bytes<uint32_t>(8) + raw_bytes<uint64_t>(1) + raw_bytes<uint64_t>(uint64_t{1} << 62)),
       "4611686018427387904"},
      {"alignment 0", [](W& w) { w.add_u32("general.alignment", 0); }, "general.alignment is 0"},
      {"alignment 48", [](W& w) { w.add_u32("general.alignment", 48); }, "48 is not a power of two"},
      {"alignment 2^31", [](W& w) { w.add_u32("general.alignment", 1u << 31); }, "2147483648"},
      {"alignment is a string", [](W& w) { w.add_string("general.alignment", "32"); }, "\"32\""},
      {"no dimensions", tensor([](W::Tensor& t) { t.forged_rank = 0; }, norm), "0 dimensions"},
      {"five dimensions",
       tensor(
           [](W::Tensor& t) {
             t.dimensions = {2, 2, 2, 2, 2};
           },
           norm),
       "5 dimensions"},
      {"2^32 - 1 dimensions", tensor([](W::Tensor& t) { t.forged_rank = ~0u; }, norm), "4294967295 dimensions"},
      {"a dimension of 0", tensor([](W::Tensor& t) { t.dimensions = {0}; }, norm), "a dimension of 0"},
      {"a dimension of -1", tensor([](W::Tensor& t) { t.dimensions = {-1}; }, norm), "a dimension of -1"},
      {"elements overflow",
       tensor(
           [](W::Tensor& t) {
             t.dimensions = {INT64_MAX, INT64_MAX};
           },
           embedding),
       "too many elements"},
      {"bytes overflow", tensor([](W::Tensor& t) { t.dimensions = {INT64_MAX}; }, norm), "too many bytes"},
      {"bytes beyond the file", tensor([](W::Tensor& t) { t.dimensions = {1 << 30}; }, norm), "4294967296 bytes"},
      {"an unknown tensor type", tensor([](W::Tensor& t) { t.type = 5; }, norm), "unknown type 5"},
      {"tensor type 2^32 - 1", tensor([](W::Tensor& t) { t.type = ~0u; }, norm), "4294967295"},
      {"a type that cannot be read", tensor([](W::Tensor& t) { t.type = 26; }, norm), "I32"},
      {"rows that are not whole blocks", tensor([](W::Tensor& t) { t.dimensions = {33}, t.type = 8; }, norm),
       "rows of 33 elements"},
      {"an offset that is not aligned", tensor([](W::Tensor& t) { t.forged_offset = 4; }, norm), "offset 4"},
      {"an offset beyond the file", tensor([=](W::Tensor& t) { t.forged_offset = huge; }, norm), "1152921504606846976"},
      {"an offset that wraps", tensor([](W::Tensor& t) { t.forged_offset = ~uint64_t{31}; }, norm),
       "18446744073709551584"},
      {"two tensors in one place", tensor([](W::Tensor& t) { t.forged_offset = 0; }, norm), "overlaps"},
      {"a tensor's name twice", tensor([](W::Tensor& t) { t.name = "blk.0.ffn_norm.weight"; }, norm),
       "post_attention_layernorm"},
      {"a name that another's becomes", tensor([](W::Tensor& t) { t.name = "model.embed_tokens.weight"; }, norm),
       "two tensors named \"model.embed_tokens.weight\""},
      {"a tensor without a name", tensor([](W::Tensor& t) { t.name = ""; }, norm), "name of 0 bytes"},
      {"a missing tensor", tensor([](W::Tensor& t) { t.name = "strange"; }, norm), "model.norm.weight"},
      {"a name of control bytes", tensor([](W::Tensor& t) { t.name = "\x1b[31m", t.type = 77; }, norm), "\\x1b[31m"},
      {"a name with a NUL", tensor([](W::Tensor& t) { t.name = std::string("a\0b", 3), t.type = 77; }, norm),
       "a\\x00b"},
      {"a shape that the config denies",
       tensor([](W::Tensor& t) { std::swap(t.dimensions[0], t.dimensions[1]); }, embedding), "[32, 8]"},
      {"split into parts", [](W& w) { w.add_u32("split.count", 3); }, "split.count 3"},
      {"a mixture of experts", [](W& w) { w.add_u32("llama.expert_count", 8); }, "llama.expert_count 8"},
      {"part rotary", [](W& w) { w.add_u32("llama.rope.dimension_count", 8); }, "llama.rope.dimension_count 8"},
      {"odd heads", [](W& w) { w.add_u32("llama.attention.key_length", 15); }, "15"},
      {"keys and values differ", [](W& w) { w.add_u32("llama.attention.value_length", 32); }, "value_length 32"},
      {"a sliding window", [](W& w) { w.add_u32("llama.attention.sliding_window", 64); }, "sliding_window 64"},
      {"a vocabulary of 2^40", [](W& w) { w.add_u64("llama.vocab_size", uint64_t{1} << 40); }, "1099511627776"},
      {"longrope", [](W& w) { w.add_string("llama.rope.scaling.type", "longrope"); }, "\"longrope\""},
      {"a scaling that is no number", [](W& w) { w.add_f32("llama.rope.scaling.factor", NAN); }, "nan"},
      {"too few rope factors",
       [](W& w) {
         w.add_tensor({"rope_freqs.weight", {4}, 0, std::string(16, '?'), {}, {}});
       },
       "rope_freqs.weight holds 4"},
      {"rope factors of zero",
       [](W& w) {
         w.add_tensor({"rope_freqs.weight", {8}, 0, std::string(32, '\0'), {}, {}});
       },
       "rope_freqs.weight holds 0"},
      {"rope factors of another type",
       [](W& w) {
         w.add_tensor({"rope_freqs.weight", {8}, 1, std::string(16, '\0'), {}, {}});
       },
       "rope_freqs.weight must be one row of F32; it is F16"},
      {"a scaling below zero", [](W& w) { w.add_i32("llama.rope.scale_linear", -5); }, "-5"},
  };
}

TEST(HostileGguf, EachIsRefused) {
  for (const GgufRow& row : gguf_rows()) {
    const TemporaryDirectory folder;
    GgufWriter writer = small_gguf("llama");
    row.forge(writer);
    expect_refused(row.label, folder.write("forged.gguf", writer.finish()), "forged.gguf", row.expected);
  }
}

TEST(HostileGguf, KeysThatAreMissingOrAbsurd) {
  struct KeyRow {
    const char* key;
    std::function<void(GgufWriter&)> set;  // null: left out
    const char* expected;
  };
  const KeyRow kRows[] = {
      {"general.architecture", nullptr, "general.architecture"},
      {"general.architecture", [](GgufWriter& w) { w.add_string("general.architecture", "mamba"); }, "mamba"},
      {"general.architecture", [](GgufWriter& w) { w.add_u32("general.architecture", 7); }, "is 7"},
      {"llama.block_count", nullptr, "llama.block_count is missing"},
      {"llama.block_count", [](GgufWriter& w) { w.add_u32("llama.block_count", 0); }, "is 0"},
      {"llama.block_count", [](GgufWriter& w) { w.add_i32("llama.block_count", -1); }, "is -1"},
      {"llama.block_count", [](GgufWriter& w) { w.add_u32("llama.block_count", 2); }, "model.layers.1."},
      {"llama.block_count", [](GgufWriter& w) { w.add_u64("llama.block_count", ~uint64_t{0}); },
       "18446744073709551615"},
      {"llama.block_count", [](GgufWriter& w) { w.add_f32("llama.block_count", 1.5f); }, "1.5"},
      {"llama.embedding_length", [](GgufWriter& w) { w.add_u32("llama.embedding_length", 33); }, "33"},
      {"llama.attention.head_count", [](GgufWriter& w) { w.add_u32("llama.attention.head_count", 0); }, "is 0"},
      {"llama.attention.head_count",
       [](GgufWriter& w) {
         w.add_i32s("llama.attention.head_count", {2, 2});
       },
       "an array of 2"},
      {"llama.attention.head_count", [](GgufWriter& w) { w.add_u32("llama.attention.head_count", 32); }, "32"},
      {"llama.attention.head_count_kv", [](GgufWriter& w) { w.add_u32("llama.attention.head_count_kv", 3); },
       "num_key_value_heads 3"},
      {"llama.rope.freq_base", [](GgufWriter& w) { w.add_f32("llama.rope.freq_base", -1); }, "is -1"},
      {"llama.context_length", [](GgufWriter& w) { w.add_string("llama.context_length", "\xff\xfe"); }, "\\xff\\xfe"},
      {"tokenizer.ggml.tokens", nullptr, "tokenizer.ggml.tokens"},
      {"tokenizer.ggml.tokens", [](GgufWriter& w) { w.add_u32("tokenizer.ggml.tokens", 8); }, "is 8"},
      {"tokenizer.ggml.eos_token_id", [](GgufWriter& w) { w.add_u32("tokenizer.ggml.eos_token_id", 8); },
       "end token id 8"},
      {"tokenizer.chat_template", [](GgufWriter& w) { w.add_u32("tokenizer.chat_template", 42); }, "is 42"},
  };
  for (const KeyRow& row : kRows) {
    const TemporaryDirectory folder;
    GgufWriter writer = small_gguf("llama");
    writer.remove(row.key);
    if (row.set) row.set(writer);
    expect_refused(row.key, folder.write("forged.gguf", writer.finish()), "forged.gguf", row.expected);
  }
}

TEST(HostileGguf, CutAnywhere) {
  const std::string whole = small_gguf("llama").finish();
  const TemporaryDirectory folder;
  EXPECT_NO_THROW(open_and_read(folder.write("cut.gguf", whole)));
  for (size_t length = 0; length < whole.size(); length += length < 3000 ? 5 : 499)
    EXPECT_THROW(open_and_read(folder.write("cut.gguf", std::string_view(whole).substr(0, length))), Error) << length;
  EXPECT_THROW(open_and_read(folder.write("cut.gguf", std::string_view(whole).substr(0, whole.size() - 1))), Error);
}

TEST(HostileGguf, AnyFlippedBitIsAnErrorOrHarmless) {
  const std::string whole = small_gguf("llama").finish();
  const TemporaryDirectory folder;
  size_t refused = 0;
  for (size_t bit = 0; bit < std::min<size_t>(whole.size(), 2600) * 8; bit += 11) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    try {
      open_and_read(folder.write("flipped.gguf", flipped));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      ++refused;
    }
  }
  EXPECT_GT(refused, 300u);
}

// ---- Directories and arguments ------------------------------------------------------------------------------------

TEST(HostileDirectory, WhatIsNotAModel) {
  const TemporaryDirectory folder;
  expect_refused("nothing there", folder.file("none"), "none", "no such file or directory");
  expect_refused("an empty argument", "", "--model", "is empty");
  expect_refused("a NUL in the argument", std::string("a\0b", 3), "a\\x00b", "NUL");
  expect_refused("a file within a file", folder.write("f", "x") + "/config.json", "f/config.json", "no such");
  expect_refused("an empty directory", folder.path(), folder.path(), "config.json");
  expect_refused("an empty file", folder.write("empty.gguf", ""), "empty.gguf", "0 bytes");
  expect_refused("a file of another format", folder.write("x.bin", "PK\x03\x04zip"), "x.bin", "PK\\x03\\x04zip");
  expect_refused("a bare safetensors file", folder.write("m.safetensors", safetensors_file("{}", 0)), "m.safetensors",
                 "not a GGUF file");
  ASSERT_EQ(::mkfifo(folder.file("pipe.gguf").c_str(), 0600), 0);
  expect_refused("a pipe", folder.file("pipe.gguf"), "pipe.gguf", "not a regular file");
  ASSERT_EQ(::symlink("loop", folder.file("loop").c_str()), 0);
  expect_refused("a link to itself", folder.file("loop"), "loop", "no such file or directory");
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
    const TemporaryDirectory folder;
    folder.write("config.json", row.text);
    expect_refused(row.label, folder.path(), "config.json", row.expected);
  }
  const TemporaryDirectory folder;
  ASSERT_EQ(::mkdir(folder.file("config.json").c_str(), 0700), 0);
  expect_refused("config.json is a directory", folder.path(), "config.json", "is a directory");
}

TEST(HostileDirectory, WeightsAndCompanions) {
  size_t data_bytes = 0;
  const std::string header = small_safetensors_header(&data_bytes), weights = safetensors_file(header, data_bytes);
  const auto refused = [&](const char* label, const std::string& file, const std::string& text, const char* expected) {
    const TemporaryDirectory folder;
    folder.write("config.json", small_config());
    folder.write("model.safetensors", weights);
    folder.write(file, text);
    expect_refused(label, folder.path(), file, expected);
  };
  refused("generation_config with a bad id", "generation_config.json", R"({"eos_token_id": [6, 8]})", "eos_token_id 8");
  refused("generation_config cut", "generation_config.json", "{", "not valid JSON");
  refused("template of a wrong type", "tokenizer_config.json", R"({"chat_template": 3})", "chat_template 3");
  refused("tokenizer_config deep", "tokenizer_config.json", "{\"a\":" + deep("[", "]", 5000) + "}", "deeper");
  const TemporaryDirectory bare;
  bare.write("config.json", small_config());
  expect_refused("no weights", bare.path(), bare.path(), "model.safetensors.index.json");
  bare.write("pytorch_model.bin", "x");
  expect_refused("pickles only", bare.path(), bare.path(), "PyTorch");
  ASSERT_EQ(::mkdir(bare.file("model.safetensors").c_str(), 0700), 0);
  expect_refused("weights are a directory", bare.path(), "model.safetensors", "is a directory");
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
      {"a tensor twice", R"({"weight_map": {"t": "a", "t": "b"}})", "\"t\" comes twice"},
      {"bad JSON", R"({"weight_map": {)", "not valid JSON"},
  };
  for (const IndexRow& row : kRows) {
    const TemporaryDirectory folder;
    folder.write("config.json", small_config());
    folder.write("model.safetensors.index.json", row.text);
    expect_refused(row.label, folder.path(), "model.safetensors.index.json", row.expected);
  }
  const TemporaryDirectory folder;
  folder.write("config.json", small_config());
  folder.write("a.safetensors", safetensors_file("{}", 0));
  folder.write("model.safetensors.index.json", R"({"weight_map": {"model.norm.weight": "a.safetensors"}})");
  expect_refused("a shard that lacks its tensor", folder.path(), "a.safetensors", "model.norm.weight");
}

}  // namespace
}  // namespace headrace
