// The GGUF format, versions 2 and 3, little endian: metadata and the tensors' places, with every count, length and
// offset checked against the file's size before it is used. Values are copies: nothing borrows the file. Pure; from any
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/input_file.h"
#include "runtime/model/gguf/dequantize.h"

namespace headrace {

enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

struct GgufValue {
  GgufType type = GgufType::kU8;  // of the value; of the elements if it is an array
  bool is_array = false;
  uint64_t count = 1;
  std::string bytes;  // a string's text; else the values as stored
};

struct GgufTensor {
  std::string name;  // GGUF's own: "blk.0.attn_q.weight"
  const GgmlType* type = nullptr;
  std::vector<int64_t> shape;     // outermost first, as safetensors has it: [out, in]
  uint64_t begin = 0, bytes = 0;  // from the start of the file
};

struct GgufFile {
  std::string source;
  uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;  // in the file's order

  const GgufTensor* find(std::string_view name) const;  // null if absent
};

// Reads the header alone. Throws Error(kBadInput).
GgufFile parse_gguf(const ByteSource& source);

// Typed getters over the metadata. Each throws Error(kBadInput) that names the file, the key and the value.
class GgufFields {
 public:
  explicit GgufFields(const GgufFile& file) : file_(file) {}
  bool has(const std::string& key) const { return file_.metadata.count(key) != 0; }
  int64_t integer(const std::string& key, int64_t min, int64_t max) const;  // Error if absent
  int64_t integer_or(const std::string& key, int64_t min, int64_t max, int64_t fallback) const;
  double number_or(const std::string& key, double min, double max, double fallback) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string string_or(const std::string& key, const std::string& fallback) const;
  // Arrays; empty if absent.
  std::vector<std::string> strings(const std::string& key) const;
  std::vector<int32_t> integers(const std::string& key) const;
  std::vector<float> numbers(const std::string& key) const;
  std::vector<bool> booleans(const std::string& key) const;
  uint64_t array_size(const std::string& key) const;  // 0 if absent
  // tokenizer.ggml.NAME, the id of a token; -1: none.
  int32_t token_id(const char* name) const;
  [[noreturn]] void refuse(const std::string& key, const std::string& why, const std::string& hint = "") const;

 private:
  const GgufValue* scalar(const std::string& key) const;
  const GgufValue* array(const std::string& key) const;
  const GgufFile& file_;
};

}  // namespace headrace
