// Builds valid and broken GGUF files in memory: every count, type and offset can be forged. A plain builder; one thread
// at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::testing_support {

class GgufWriter {
 public:
  // Written by finish() instead of the true values.
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> forged_tensors, forged_keys;
  uint64_t alignment = 32;  // of the data; the key general.alignment is not written automatically

  void add_u32(const std::string& key, uint32_t value);
  void add_u64(const std::string& key, uint64_t value);
  void add_i32(const std::string& key, int32_t value);
  void add_f32(const std::string& key, float value);
  void add_bool(const std::string& key, bool value);
  void add_string(const std::string& key, std::string_view value);
  void add_strings(const std::string& key, const std::vector<std::string>& values);
  void add_i32s(const std::string& key, const std::vector<int32_t>& values);
  void add_f32s(const std::string& key, const std::vector<float>& values);
  void add_raw(const std::string& key, uint32_t type, std::string_view bytes);  // any type, any bytes

  void remove(const std::string& key);  // a key added before

  struct Tensor {
    std::string name;
    std::vector<int64_t> dimensions;  // innermost first, as in the format
    uint32_t type = 0;                // 0: F32
    std::string bytes;
    std::optional<uint64_t> forged_offset;
    std::optional<uint32_t> forged_rank;
  };
  void add_tensor(Tensor tensor) { tensors_.push_back(std::move(tensor)); }
  std::vector<Tensor>& tensors() { return tensors_; }

  std::string finish() const;

 private:
  struct Key {
    std::string name, bytes;  // bytes: type and value
  };
  std::vector<Key> keys_;
  std::vector<Tensor> tensors_;
};

// The bytes of a value; of a string with its length first.
template <typename T>
std::string raw_bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string raw_string(std::string_view text);

}  // namespace headrace::testing_support
