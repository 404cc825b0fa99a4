#include "tests/support/torch_files.h"

#include "cache/base.h"

namespace headrace::testing_support {
namespace {

template <typename T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string tuple(const std::vector<int64_t>& values) {
  std::string out = "(";
  for (const int64_t value : values) out += pickled_int(value);
  return out + "t";
}

}  // namespace

std::string ZipFile::finish() const {
  std::string data, directory;
  for (const Entry& entry : entries) {
    const uint64_t offset = data.size(), size = entry.bytes.size();
    const std::string extra64 = zip64 ? raw<uint16_t>(1) + raw<uint16_t>(24) + raw(size) + raw(size) + raw(offset) : "";
    const uint32_t size32 = zip64 ? 0xffffffff : static_cast<uint32_t>(size);
    const std::string common = raw(entry.flags) + raw(entry.method) + raw<uint32_t>(0) + raw<uint32_t>(0) +
                               raw(size32) + raw(size32) + raw(static_cast<uint16_t>(entry.name.size()));
    const std::string padding = "\x46\x42\x03\x00zzz";  // only in local headers, as PyTorch aligns its data
    data += raw<uint32_t>(0x04034b50) + raw<uint16_t>(45) + common + raw<uint16_t>(7) + entry.name +
            std::string(padding.data(), 7) + entry.bytes;
    directory += raw<uint32_t>(0x02014b50) + raw<uint16_t>(45) + raw<uint16_t>(45) + common +
                 raw(static_cast<uint16_t>(extra64.size())) + raw<uint16_t>(0) + raw<uint16_t>(0) + raw<uint16_t>(0) +
                 raw<uint32_t>(0) + raw(zip64 ? 0xffffffff : static_cast<uint32_t>(offset)) + entry.name + extra64;
  }
  const uint64_t begin = data.size(), count = entries.size();
  data += directory;
  if (zip64) {
    const uint64_t at = data.size();
    data += raw<uint32_t>(0x06064b50) + raw<uint64_t>(44) + raw<uint16_t>(45) + raw<uint16_t>(45) + raw<uint32_t>(0) +
            raw<uint32_t>(0) + raw(count) + raw(count) + raw<uint64_t>(directory.size()) + raw(begin);
    data += raw<uint32_t>(0x07064b50) + raw<uint32_t>(0) + raw(at) + raw<uint32_t>(1);
  }
  const uint16_t count16 = zip64 ? 0xffff : static_cast<uint16_t>(count);
  return data + raw<uint32_t>(0x06054b50) + raw<uint16_t>(0) + raw<uint16_t>(0) + raw(count16) + raw(count16) +
         raw(static_cast<uint32_t>(directory.size())) + raw(zip64 ? 0xffffffff : static_cast<uint32_t>(begin)) +
         raw(static_cast<uint16_t>(comment.size())) + comment;
}

std::string pickled_text(const std::string& text) { return "X" + raw(static_cast<uint32_t>(text.size())) + text; }

std::string pickled_int(int64_t value) {
  if (value >= 0 && value < 256) return "K" + raw(static_cast<uint8_t>(value));
  return "\x8a\x08" + raw(value);
}

std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

std::string pickled(const PickledTensor& t) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled_text("storage") + "ctorch\n" + t.storage + "\n" +
         pickled_text(t.key) + pickled_text("cpu") + pickled_int(t.elements) + "tQ" + pickled_int(t.offset) +
         tuple(t.shape) + tuple(t.strides) + "\x89" + "ccollections\nOrderedDict\n)R" + "tR";
}

std::string torch_bytes(const std::map<std::string, FileTensor>& tensors) {
  ZipFile zip;
  std::string pickle = "\x80\x02}(";
  for (const auto& [name, tensor] : tensors) {
    const std::string key = str(zip.entries.size());
    const bool f32 = tensor.dtype == "F32", i64 = tensor.dtype == "I64";
    CHECK(f32 || i64 || tensor.dtype == "BOOL", tensor.dtype);
    const size_t elements = tensor.bytes.size() / (f32 ? 4 : i64 ? 8 : 1);
    pickle +=
        pickled_text(name) + pickled({f32   ? "FloatStorage"
                                      : i64 ? "LongStorage"
                                            : "BoolStorage",
                                      key, static_cast<int64_t>(elements), 0, tensor.shape, row_major(tensor.shape)});
    zip.entries.push_back({"head/data/" + key, tensor.bytes});
  }
  zip.entries.push_back({"head/data.pkl", pickle + "u."});
  zip.entries.push_back({"head/byteorder", "little"});
  return zip.finish();
}

}  // namespace headrace::testing_support
