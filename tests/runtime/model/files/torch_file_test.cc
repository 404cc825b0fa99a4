// PyTorch files: one that torch wrote (tests/data/torch), and broken ones, each refused with what it asks for.
#include "runtime/model/files/torch_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cache/base.h"
#include "runtime/base/input_file.h"
#include "runtime/model/convert.h"
#include "runtime/model/files/pickle.h"
#include "tests/support/torch_files.h"

namespace headrace {
namespace {

using testing_support::pickled;
using testing_support::pickled_int;
using testing_support::pickled_text;
using testing_support::PickledTensor;
using testing_support::ZipFile;

std::string small_file() { return read_small_file(HEADRACE_TEST_DATA "/torch/small.bin", 1 << 20); }

TEST(TorchFile, WhatTorchWrote) {
  const std::string file = small_file();
  const std::vector<StoredTensor> tensors = parse_torch_file(MemoryBytes(file, "small.bin"));
  struct Row {
    const char* name;
    const char* dtype;
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  const std::vector<Row> rows = {
      {"weight", "F32", {2, 3}, {0, 1, 2, 3, 4, 5}},
      {"half", "F16", {2, 2}, {1.5f, -2.0f, 0.25f, 65504.0f}},
      {"bf16", "BF16", {3}, {1.0f, -3.140625f, 0.0f}},
      {"whole", "F32", {3, 4}, {0, .125f, .25f, .375f, .5f, .625f, .75f, .875f, 1, 1.125f, 1.25f, 1.375f}},
      {"part", "F32", {2, 4}, {.5f, .625f, .75f, .875f, 1, 1.125f, 1.25f, 1.375f}},
      {"d2t", "I64", {4}, {}},
      {"t2d", "BOOL", {3}, {}},
      {"scalar", "F32", {}, {2.5f}},
      {"empty", "F32", {0, 4}, {}},
  };
  ASSERT_EQ(tensors.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const StoredTensor& tensor = tensors[i];
    EXPECT_EQ(tensor.name, rows[i].name);
    EXPECT_EQ(tensor.dtype, rows[i].dtype) << tensor.name;
    EXPECT_EQ(tensor.shape, rows[i].shape) << tensor.name;
    if (rows[i].values.empty()) continue;
    const DType type = tensor.dtype == "F32" ? DType::kF32 : tensor.dtype == "F16" ? DType::kF16 : DType::kBF16;
    ASSERT_EQ(tensor.bytes, rows[i].values.size() * dtype_bytes(type)) << tensor.name;
    std::vector<float> values(rows[i].values.size());
    convert_elements(type, file.data() + tensor.begin, DType::kF32, values.data(), static_cast<int64_t>(values.size()));
    EXPECT_EQ(values, rows[i].values) << tensor.name;
  }
  EXPECT_EQ(tensors[4].begin, tensors[3].begin + 16);  // a part of the same storage
  int64_t d2t[4];
  ASSERT_EQ(tensors[5].bytes, sizeof d2t);
  std::memcpy(d2t, file.data() + tensors[5].begin, sizeof d2t);
  EXPECT_EQ(d2t[2], -1);
  EXPECT_EQ(d2t[3], int64_t{1} << 40);
  EXPECT_EQ(file.substr(tensors[6].begin, tensors[6].bytes), std::string("\1\0\1", 3));
  EXPECT_EQ(tensors[8].bytes, 0u);
}

// Cut anywhere and changed anywhere: an Error or a result that lies within the bytes.
TEST(TorchFile, EveryCutAndEveryChangedByte) {
  const std::string file = small_file();
  for (size_t length = 0; length < file.size(); ++length)
    EXPECT_THROW(parse_torch_file(MemoryBytes(std::string_view(file).substr(0, length), "cut")), Error) << length;
  for (size_t i = 0; i < file.size(); ++i) {
    std::string changed = file;
    for (const char bits : {'\x01', '\x80', '\xff'}) {
      changed[i] = static_cast<char>(file[i] ^ bits);
      try {
        for (const StoredTensor& tensor : parse_torch_file(MemoryBytes(changed, "changed")))
          ASSERT_TRUE(tensor.begin <= file.size() && tensor.bytes <= file.size() - tensor.begin) << i;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ExitCode::kBadInput) << i << ": " << error.what();
      }
    }
  }
}

void expect_refused(const std::string& file, const std::vector<std::string>& expected) {
  try {
    parse_torch_file(MemoryBytes(file, "some.bin"));
    ADD_FAILURE() << "accepted; expected: " << expected.front();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ExitCode::kBadInput) << text;
    EXPECT_EQ(text.rfind("some.bin: ", 0), 0u) << text;
    for (const std::string& part : expected) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

// A file with one storage, "0", of 24 bytes, and a pickle.
ZipFile with_pickle(const std::string& pickle) {
  ZipFile zip;
  zip.entries = {{"a/data.pkl", pickle}, {"a/byteorder", "little"}, {"a/data/0", std::string(24, '\0')}};
  return zip;
}
std::string with_tensor(const PickledTensor& tensor) {
  return with_pickle("\x80\x02}" + pickled_text("t") + pickled(tensor) + "s.").finish();
}

TEST(TorchFile, ArchivesByHand) {
  const PickledTensor right = {"FloatStorage", "0", 6, 2, {2, 2}, {2, 1}};
  ZipFile zip = with_pickle("\x80\x02}" + pickled_text("t") + pickled(right) + "s.");
  const std::vector<StoredTensor> plain = parse_torch_file(MemoryBytes(zip.finish(), "some.bin"));
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_EQ(plain[0].bytes, 16u);
  zip.zip64 = true;
  zip.comment = "a comment with PK\5\6 in it";
  EXPECT_EQ(parse_torch_file(MemoryBytes(zip.finish(), "some.bin"))[0].begin, plain[0].begin);

  ZipFile broken = zip;
  broken.entries[2].method = 8;
  expect_refused(broken.finish(), {"\"a/data/0\" is compressed (method 8)"});
  broken.entries[2].method = 0;
  broken.entries[2].flags = 1;
  expect_refused(broken.finish(), {"\"a/data/0\" is encrypted"});
  broken = zip;
  broken.entries.push_back(broken.entries[2]);
  expect_refused(broken.finish(), {"two entries are named \"a/data/0\""});
  broken = zip;
  broken.entries[1].bytes = "big";
  expect_refused(broken.finish(), {"byteorder is \"big\""});
  broken = zip;
  broken.entries[0].name = "data.pkl";
  expect_refused(broken.finish(), {"holds no data.pkl"});
  broken = zip;
  broken.entries.push_back({"b/data.pkl", broken.entries[0].bytes});
  expect_refused(broken.finish(), {"holds both a/data.pkl and b/data.pkl"});
  broken.entries = {};
  broken.zip64 = false;
  expect_refused("PK\x03\x04" + broken.finish(), {"holds no data.pkl"});
  expect_refused(zip.finish() + "more", {"cut short or not a zip archive"});
  expect_refused("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8", {"not a zip archive", "1.6"});  // before 1.6
}

TEST(TorchFile, TensorsThatCannotBe) {
  expect_refused(with_tensor({"FloatStorage", "1", 6, 0, {6}, {1}}),
                 {"tensor \"t\"", "storage \"1\"", "does not exist"});
  expect_refused(with_tensor({"FloatStorage", "0", 7, 0, {6}, {1}}), {"storage of 7 F32", "24 bytes"});
  expect_refused(with_tensor({"LongStorage", "0", 6, 0, {3}, {1}}), {"storage of 6 I64", "24 bytes"});
  expect_refused(with_tensor({"FloatStorage", "0", 6, 1, {6}, {1}}), {"6 elements from the 1th on", "has 6"});
  expect_refused(with_tensor({"FloatStorage", "0", 6, INT64_MAX, {6}, {1}}), {"tensor \"t\"", "has 6"});
  expect_refused(with_tensor({"FloatStorage", "0", 6, -1, {6}, {1}}), {"tensor \"t\"", "at least 0"});
  expect_refused(with_tensor({"FloatStorage", "0", 6, 0, {INT64_MAX, INT64_MAX}, {1, 1}}), {"too many elements"});
  expect_refused(with_tensor({"FloatStorage", "0", 6, 0, {3, 2}, {1, 3}}), {"not contiguous", "stride 3, not 1"});
  expect_refused(with_tensor({"FloatStorage", "0", 6, 0, {3, 2}, {2}}), {"1 strides for 2 dimensions"});
  expect_refused(with_tensor({"FloatStorage", "0", 6, 0, std::vector<int64_t>(9, 1), std::vector<int64_t>(9, 1)}),
                 {"at most 8"});
  expect_refused(with_tensor({"DoubleStorage", "0", 3, 0, {3}, {1}}), {"\"torch DoubleStorage\""});
  const std::string key = pickled_text("t");
  expect_refused(with_pickle("\x80\x02}" + key + pickled_int(3) + "s.").finish(), {"entry \"t\" is not a tensor"});
  expect_refused(with_pickle("\x80\x02}" + pickled_int(3) + key + "s.").finish(), {"a key that is not a string"});
  expect_refused(with_pickle("\x80\x02" + key + ".").finish(), {"holds no state_dict"});
  expect_refused(with_pickle(std::string(5 << 20, 'N')).finish(), {"data.pkl", "at most"});
}

TEST(TorchFile, PicklesThatAskForMore) {
  const auto refused = [](const std::string& pickle, const std::vector<std::string>& expected) {
    expect_refused(with_pickle(pickle).finish(), expected);
  };
  refused(
      "\x80\x02"
      "cos\nsystem\n" +
          pickled_text("true") + "\x85R.",
      {"the global \"os system\""});
  refused(
      "\x80\x02"
      "c__builtin__\neval\n.",
      {"the global \"__builtin__ eval\""});
  refused(
      "\x80\x02"
      "ctorch._utils\n_rebuild_parameter\n.",
      {"_rebuild_parameter"});
  refused("\x80\x04.", {"protocol 4"});
  refused("\x93.", {"opcode 0x93"});                  // STACK_GLOBAL
  refused("(ios\nsystem\n.", {"opcode 0x69 ('i')"});  // INST
  refused("(o.", {"opcode 0x6f ('o')"});
  refused("\x82\x01.", {"opcode 0x82"});  // EXT1
  refused("]..", {"opcode 0x5d (']')"});
  refused("R.", {"takes 2 values"});
  refused(")(R.", {"takes 2 values"});  // not across a mark
  refused("t.", {"mark"});
  refused("}(.", {"ends with 1 values"});
  refused("NN.", {"ends with 2 values"});
  refused("h\x05.", {"recalls value 5"});
  refused("q\x01.", {"empty"});
  refused(")NNs.", {"sets items of a value that is not a dictionary"});
  refused("}(Nu.", {"a key without a value"});
  refused("NQ.", {"not a tuple"});
  refused("))R.", {"not a function"});
  refused("ccollections\nOrderedDict\nN\x85R.", {"\"collections OrderedDict\""});
  refused("ctorch\nFloatStorage\n)R.", {"\"torch FloatStorage\""});
  refused(")Nb.", {"attributes to a value that is not a dictionary"});
  refused("\x8a\x09.........", {"9 bytes"});
  refused(std::string("X\xff\xff\xff\x7f") + "a.", {"should follow"});
  refused("ctorch", {"ends within a name"});
  refused("", {"should follow"});
  refused("ctorch._utils\n_rebuild_tensor_v2\n)R.", {"holds no state_dict"});
  refused("}" + pickled_text("t") + "ctorch._utils\n_rebuild_tensor_v2\n)Rs.", {"unknown form"});
}

TEST(TorchFile, NestingDoesNotGrowTheStack) {
  std::string pickle = "N";
  for (int i = 0; i < 1000000; ++i) pickle += "\x85";
  EXPECT_EQ(parse_pickle(pickle + ".", "deep").values.size(), 1000001u);
  const Pickle circle =
      parse_pickle("}q" + std::string(1, '\0') + pickled_text("me") + "h" + std::string(1, '\0') + "s.", "circle");
  EXPECT_EQ(circle.root->dict.front().second, circle.root);
}

TEST(TorchFile, Integers) {
  const auto number = [](const std::string& pickle) { return parse_pickle(pickle + ".", "integer").root->number; };
  EXPECT_EQ(number("K\xff"), 255);
  EXPECT_EQ(number("M\xff\xff"), 65535);
  EXPECT_EQ(number("J\xff\xff\xff\xff"), -1);
  EXPECT_EQ(number(std::string("\x8a\x00", 2)), 0);
  EXPECT_EQ(number("\x8a\x01\xff"), -1);
  EXPECT_EQ(number(std::string("\x8a\x02\xff\x00", 4)), 255);
  EXPECT_EQ(number("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"), INT64_MAX);
}

}  // namespace
}  // namespace headrace
