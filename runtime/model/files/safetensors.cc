#include "runtime/model/files/safetensors.h"

#include <algorithm>
#include <array>

#include "cache/base.h"
#include "runtime/base/json_file.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxJsonBytes = 100'000'000;  // the reference implementation's limit

struct StoredType {
  const char* name;
  uint64_t bits;
};
constexpr std::array<StoredType, 20> kStoredTypes = {
    {{"BF16", 16},   {"F16", 16},    {"F32", 32}, {"F64", 64},    {"BOOL", 8},    {"U8", 8},   {"I8", 8},
     {"U16", 16},    {"I16", 16},    {"U32", 32}, {"I32", 32},    {"U64", 64},    {"I64", 64}, {"F8_E4M3", 8},
     {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"C64", 64}}};

[[noreturn]] void refuse(const std::string& source, const std::string& tensor, const std::string& what) {
  throw_error(ExitCode::kBadInput, source, "tensor \"" + printable(tensor) + "\": " + what);
}

std::string header_text(const ByteSource& file) {
  const std::string& source = file.name();
  if (file.size() < kLengthBytes)
    throw_error(ExitCode::kBadInput, source, str("is ", file.size(), " bytes: too short for a safetensors file"));
  uint64_t length = 0;
  file.read(0, &length, sizeof length);
  if (length > kMaxJsonBytes || length > file.size() - kLengthBytes)
    throw_error(ExitCode::kBadInput, source,
                str("safetensors header declares ", length, " bytes; the file has ", file.size()),
                "the file is cut short or is not a safetensors file");
  std::string text = file.text(kLengthBytes, length);
  if (text.empty() || text.front() != '{')
    throw_error(ExitCode::kBadInput, source,
                "safetensors header does not begin with '{' but with \"" + printable(text.substr(0, 8)) + "\"");
  return text;
}

uint64_t unsigned_item(const json& list, size_t index, const std::string& source, const std::string& tensor,
                       const char* key) {
  const json& item = list[index];
  if (!item.is_number_unsigned())
    refuse(source, tensor, str(key, " ", shown(list), " must hold whole numbers of at least 0"));
  return item.get<uint64_t>();
}

const json& list_of(const json& entry, const char* key, const std::string& source, const std::string& tensor) {
  const auto found = entry.find(key);
  if (found == entry.end()) refuse(source, tensor, str(key, " is missing"));
  if (!found->is_array()) refuse(source, tensor, str(key, " ", shown(*found), " must be a list"));
  return *found;
}

uint64_t bits_of(const std::string& dtype, const std::string& source, const std::string& tensor) {
  for (const StoredType& type : kStoredTypes)
    if (dtype == type.name) return type.bits;
  refuse(source, tensor, "dtype \"" + printable(dtype) + "\" is unknown");
}

// The shape, and the bytes that a tensor of it takes.
std::vector<int64_t> parse_shape(const json& entry, const std::string& dtype, const std::string& source,
                                 const std::string& tensor, uint64_t* bytes) {
  const json& shape = list_of(entry, "shape", source, tensor);
  uint64_t bits = bits_of(dtype, source, tensor);
  std::vector<int64_t> out;
  for (size_t i = 0; i < shape.size(); ++i) {
    const uint64_t size = unsigned_item(shape, i, source, tensor, "shape");
    if (size > static_cast<uint64_t>(INT64_MAX) || !checked_mul(bits, size, &bits))
      refuse(source, tensor, str("shape ", shown(shape), " is too large"));
    out.push_back(static_cast<int64_t>(size));
  }
  if (bits % 8 != 0) refuse(source, tensor, str(dtype, " ", shown(shape), " is ", bits, " bits, not whole bytes"));
  *bytes = bits / 8;
  return out;
}

StoredTensor parse_entry(const std::string& name, const json& entry, const std::string& source) {
  if (!entry.is_object()) refuse(source, name, shown(entry) + " must be an object");
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) refuse(source, name, "dtype is missing or not a string");
  StoredTensor out;
  out.name = name;
  out.dtype = dtype->get<std::string>();
  uint64_t needed = 0;
  out.shape = parse_shape(entry, out.dtype, source, name, &needed);
  const json& offsets = list_of(entry, "data_offsets", source, name);
  if (offsets.size() != 2) refuse(source, name, str("data_offsets ", shown(offsets), " must be two numbers"));
  out.begin = unsigned_item(offsets, 0, source, name, "data_offsets");
  const uint64_t end = unsigned_item(offsets, 1, source, name, "data_offsets");
  if (end < out.begin) refuse(source, name, str("data_offsets ", shown(offsets), " end before they begin"));
  out.bytes = end - out.begin;
  if (out.bytes != needed)
    refuse(source, name,
           str("data_offsets ", shown(offsets), " are ", out.bytes, " bytes; ", out.dtype, " ",
               shown(entry.at("shape")), " needs ", needed));
  return out;
}

// By the format, the tensors follow one another without a gap and fill the file. `offset` is where the data begins.
void check_coverage(std::vector<StoredTensor>* entries, uint64_t offset, uint64_t data_bytes,
                    const std::string& source) {
  std::sort(entries->begin(), entries->end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.bytes < b.bytes;
  });
  uint64_t expected = 0;
  for (StoredTensor& entry : *entries) {
    if (entry.begin != expected)
      refuse(source, entry.name,
             str("data_offsets begin at ", entry.begin,
                 entry.begin < expected ? ", inside the tensor before, which ends at "
                                        : ", after a gap: the tensor before ends at ",
                 expected));
    if (entry.bytes > data_bytes - expected)
      refuse(source, entry.name,
             str("data_offsets end at ", entry.begin + entry.bytes, "; the file has ", data_bytes, " bytes of data"));
    expected += entry.bytes;
    entry.begin += offset;
  }
  if (expected != data_bytes)
    throw_error(ExitCode::kBadInput, source,
                str("has ", data_bytes, " bytes of data, of which its tensors cover ", expected));
}

}  // namespace

std::vector<StoredTensor> parse_safetensors(const ByteSource& file) {
  const std::string& source = file.name();
  const std::string text = header_text(file);
  const json header = parse_json_object(text, source, DuplicateKeys::kRefuse);
  std::vector<StoredTensor> entries;
  for (const auto& [name, entry] : header.items())
    if (name != "__metadata__") entries.push_back(parse_entry(name, entry, source));
  const uint64_t offset = kLengthBytes + text.size();
  check_coverage(&entries, offset, file.size() - offset, source);
  return entries;
}

}  // namespace headrace
