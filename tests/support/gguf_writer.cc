#include "tests/support/gguf_writer.h"

#include <algorithm>

namespace headrace::testing_support {
namespace {

enum : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kU64 = 10 };

template <typename T>
std::string array_bytes(uint32_t type, const std::vector<T>& values) {
  std::string out = raw_bytes(type) + raw_bytes<uint64_t>(values.size());
  for (const T& value : values) out += raw_bytes(value);
  return out;
}

}  // namespace

std::string raw_string(std::string_view text) { return raw_bytes<uint64_t>(text.size()).append(text); }

void GgufWriter::add_raw(const std::string& key, uint32_t type, std::string_view bytes) {
  keys_.push_back({key, raw_bytes(type).append(bytes)});
}
void GgufWriter::remove(const std::string& key) {
  keys_.erase(std::remove_if(keys_.begin(), keys_.end(), [&](const Key& item) { return item.name == key; }),
              keys_.end());
}
void GgufWriter::add_u32(const std::string& key, uint32_t value) { add_raw(key, kU32, raw_bytes(value)); }
void GgufWriter::add_u64(const std::string& key, uint64_t value) { add_raw(key, kU64, raw_bytes(value)); }
void GgufWriter::add_i32(const std::string& key, int32_t value) { add_raw(key, kI32, raw_bytes(value)); }
void GgufWriter::add_f32(const std::string& key, float value) { add_raw(key, kF32, raw_bytes(value)); }
void GgufWriter::add_bool(const std::string& key, bool value) { add_raw(key, kBool, raw_bytes<char>(value ? 1 : 0)); }
void GgufWriter::add_string(const std::string& key, std::string_view value) {
  add_raw(key, kString, raw_string(value));
}
void GgufWriter::add_strings(const std::string& key, const std::vector<std::string>& values) {
  std::string bytes = raw_bytes<uint32_t>(kString) + raw_bytes<uint64_t>(values.size());
  for (const std::string& value : values) bytes += raw_string(value);
  add_raw(key, kArray, bytes);
}
void GgufWriter::add_i32s(const std::string& key, const std::vector<int32_t>& values) {
  add_raw(key, kArray, array_bytes(kI32, values));
}
void GgufWriter::add_f32s(const std::string& key, const std::vector<float>& values) {
  add_raw(key, kArray, array_bytes(kF32, values));
}

std::string GgufWriter::finish() const {
  std::string header = magic + raw_bytes(version) + raw_bytes<uint64_t>(forged_tensors.value_or(tensors_.size())) +
                       raw_bytes<uint64_t>(forged_keys.value_or(keys_.size()));
  for (const Key& key : keys_) header += raw_string(key.name) + key.bytes;
  std::string data;
  for (const Tensor& tensor : tensors_) {
    header += raw_string(tensor.name) +
              raw_bytes<uint32_t>(tensor.forged_rank.value_or(static_cast<uint32_t>(tensor.dimensions.size())));
    for (const int64_t dimension : tensor.dimensions) header += raw_bytes(dimension);
    header += raw_bytes(tensor.type) + raw_bytes<uint64_t>(tensor.forged_offset.value_or(data.size()));
    data += tensor.bytes;
    data.resize((data.size() + alignment - 1) / alignment * alignment);
  }
  header.resize((header.size() + alignment - 1) / alignment * alignment);
  return header + data;
}

}  // namespace headrace::testing_support
