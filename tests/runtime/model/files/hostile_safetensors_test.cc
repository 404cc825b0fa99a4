// Safetensors files that are cut or forged.
// Each ends in an Error that names the file and the value, and none touches memory it should not (this runs under ASan
// and UBSan too).
#include <gtest/gtest.h>

#include "cache/base.h"
#include "tests/runtime/model/files/hostile.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using namespace testing_support;

struct SafetensorsRow {
  const char* label;
  std::string bytes;
  const char* expected;
};

std::string one_tensor(const std::string& entry, size_t data_bytes) {
  return safetensors_file("{\"t\":" + entry + "}", data_bytes);
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
      {"a zip file", "PK\x03\x04" + std::string(100, 'x'), "header declares"},
      {"header that is no object", safetensors_file("[1,2]", 0), "'{'"},
      {"cut JSON", safetensors_file(R"({"t":{"dtype":"F32")", 0), "not valid JSON"},
      {"NUL in the JSON", safetensors_file(std::string("{\"t\0\":1}", 8), 0), "not valid JSON"},
      {"bad UTF-8", safetensors_file("{\"\xff\xfe\":1}", 0), "not valid JSON"},
      {"text after the JSON", safetensors_file("{}x", 0), "not valid JSON"},
      {"deep arrays", one_tensor(deep("[", "]", 100000), 0), "deeper than 64"},
      {"deep objects", one_tensor(deep("{\"a\":", "}", 100000), 0), "deeper than 64"},
      {"a name twice", safetensors_file("{\"t\":" + good + ",\"t\":" + good + "}", 8), "\"t\" occurs twice"},
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
    const TemporaryFolder folder;
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
  const TemporaryFolder folder;
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
  const TemporaryFolder folder;
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
  const TemporaryFolder folder;
  folder.write("config.json", small_config());
  folder.write("model.safetensors", replaced("\"F32\"", "\"I32\""));
  expect_refused("I32 weights", folder.path(), "model.safetensors", "I32");
  folder.write("model.safetensors", replaced("[8,32]", "[32,8]"));
  expect_refused("a transposed embedding", folder.path(), folder.path(), "[32, 8]");
  folder.write("model.safetensors", replaced("model.norm.weight", "model.nrom.weight"));
  expect_refused("a tensor with another name", folder.path(), folder.path(), "model.norm.weight");
}

}  // namespace
}  // namespace headrace
