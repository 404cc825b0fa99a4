#include "runtime/model/files/torch_file.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "cache/base.h"
#include "runtime/model/files/pickle.h"
#include "runtime/model/files/zip_file.h"

namespace headrace {
namespace {

using Kind = PickleValue::Kind;

constexpr uint64_t kMaxPickleBytes =
    4 * kMiB;  // a tensor takes about 100 bytes; a value in memory more than its opcode
constexpr size_t kMaxRank = 8;

struct StorageType {
  const char* global;
  const char* dtype;  // by safetensors' names
  uint64_t bytes;
};
constexpr std::array<StorageType, 5> kStorageTypes = {{{"torch FloatStorage", "F32", 4},
                                                       {"torch HalfStorage", "F16", 2},
                                                       {"torch BFloat16Storage", "BF16", 2},
                                                       {"torch LongStorage", "I64", 8},
                                                       {"torch BoolStorage", "BOOL", 1}}};

class TorchFile {
 public:
  explicit TorchFile(const ByteSource& file) : file_(file), source_(file.name()) {
    const std::string begin = file.text(0, std::min<uint64_t>(8, file.size()));
    if (!begin.starts_with("PK\x03\x04"))
      throw_error(ExitCode::kBadInput, source_,
                  "is not a zip archive, as PyTorch writes since 1.6: it begins with \"" + printable(begin) + "\"",
                  "save it again with a newer PyTorch, or convert it to safetensors");
    for (ZipEntry& entry : parse_zip(file)) {
      std::string name = entry.name;
      entries_.emplace(std::move(name), std::move(entry));
    }
  }

  std::vector<StoredTensor> tensors() {
    const ZipEntry& description = find_description();
    if (const auto order = entries_.find(folder_ + "byteorder"); order != entries_.end()) {
      const std::string name = text(order->second);
      if (name != "little") refuse("byteorder", "is \"" + printable(name) + "\"");
    }
    const Pickle pickle = parse_pickle(text(description), source_);
    if (pickle.root->kind != Kind::kDict) refuse("data.pkl", "holds no state_dict");
    std::vector<StoredTensor> out;
    for (const auto& [key, value] : pickle.root->dict) {
      if (key->kind != Kind::kString) refuse("data.pkl", "has a key that is not a string");
      out.push_back(tensor(key->text, *value));
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& why) const {
    throw_error(ExitCode::kBadInput, source_, what + " " + why);
  }
  std::string text(const ZipEntry& entry) const {
    if (entry.bytes > kMaxPickleBytes)
      refuse(printable(entry.name), str("is ", entry.bytes, " bytes; at most ", kMaxPickleBytes, " are expected"));
    return file_.text(entry.begin, entry.bytes);
  }

  // All entries lie in one folder, named after the file as it was saved.
  const ZipEntry& find_description() {
    constexpr std::string_view kName = "data.pkl";
    const ZipEntry* found = nullptr;
    for (const auto& [name, entry] : entries_) {
      const size_t slash = name.find('/');
      if (slash == std::string::npos || name.substr(slash + 1) != kName) continue;
      if (found != nullptr) {
        const auto [first, second] = std::minmax(found->name, name);
        refuse("the archive", "holds both " + printable(first) + " and " + printable(second) +
                                  ": an archive of a model holds one of them");
      }
      folder_ = name.substr(0, slash + 1);
      found = &entry;
    }
    if (found == nullptr) refuse("the archive", "holds no data.pkl: it is not PyTorch's");
    return *found;
  }

  StoredTensor tensor(const std::string& name, const PickleValue& value) const {
    const std::string label = "tensor \"" + printable(name) + "\"";
    if (value.kind != Kind::kTensor) refuse("entry \"" + printable(name) + "\"", "is not a tensor");
    // storage, offset, size, stride, requires_grad, backward_hooks, and perhaps metadata.
    const std::vector<const PickleValue*>& arguments = value.items.front()->items;
    if (arguments.size() < 4 || arguments[0]->kind != Kind::kPersistent) refuse(label, "has an unknown form");
    uint64_t element_bytes = 0;
    StoredTensor out = storage(label, *arguments[0]->items.front(), &element_bytes);
    out.name = name;
    const uint64_t offset = static_cast<uint64_t>(whole(label, *arguments[1]));
    uint64_t elements = 1, begin = 0, bytes = 0;
    out.shape = sizes(label, *arguments[2], &elements);
    if (!checked_mul(offset, element_bytes, &begin) || !checked_mul(elements, element_bytes, &bytes) ||
        begin > out.bytes || bytes > out.bytes - begin)
      refuse(label, str("takes ", elements, " elements from the ", offset, "th on; its storage has ",
                        out.bytes / element_bytes));
    check_contiguous(label, out.shape, *arguments[3]);
    out.begin += begin;
    out.bytes = bytes;
    return out;
  }

  // ("storage", class, key, device, elements): its place and type.
  StoredTensor storage(const std::string& label, const PickleValue& id, uint64_t* element_bytes) const {
    const std::vector<const PickleValue*>& parts = id.items;
    if (parts.size() != 5 || parts[0]->text != "storage" || parts[1]->kind != Kind::kGlobal ||
        parts[2]->kind != Kind::kString)
      refuse(label, "has a storage of an unknown form");
    StoredTensor out;
    for (const StorageType& type : kStorageTypes)
      if (parts[1]->text == type.global) out.dtype = type.dtype, *element_bytes = type.bytes;
    if (out.dtype.empty()) refuse(label, "has a storage of \"" + printable(parts[1]->text) + "\"");
    const auto found = entries_.find(folder_ + "data/" + parts[2]->text);
    if (found == entries_.end())
      refuse(label, "has the storage \"" + printable(parts[2]->text) + "\", which does not exist");
    uint64_t bytes = 0;
    if (!checked_mul(static_cast<uint64_t>(whole(label, *parts[4])), *element_bytes, &bytes) ||
        bytes != found->second.bytes)
      refuse(label, str("has a storage of ", parts[4]->number, " ", out.dtype, "; its entry has ", found->second.bytes,
                        " bytes"));
    out.begin = found->second.begin;
    out.bytes = bytes;
    return out;
  }

  int64_t whole(const std::string& label, const PickleValue& value) const {
    if (value.kind != Kind::kInt || value.number < 0)
      refuse(label, "has a size that is not a whole number of at least 0");
    return value.number;
  }

  std::vector<int64_t> sizes(const std::string& label, const PickleValue& value, uint64_t* elements) const {
    if (value.kind != Kind::kTuple || value.items.size() > kMaxRank)
      refuse(label, str("has a shape that is not a tuple of at most ", kMaxRank));
    std::vector<int64_t> out;
    for (const PickleValue* item : value.items) {
      out.push_back(whole(label, *item));
      if (!checked_mul(*elements, static_cast<uint64_t>(out.back()), elements)) refuse(label, "has too many elements");
    }
    return out;
  }

  // A stride over a dimension of one element says nothing; those of an empty tensor neither.
  void check_contiguous(const std::string& label, const std::vector<int64_t>& shape, const PickleValue& strides) const {
    if (strides.kind != Kind::kTuple || strides.items.size() != shape.size())
      refuse(label, str("has ", strides.items.size(), " strides for ", shape.size(), " dimensions"));
    int64_t expected = 1;
    for (const int64_t size : shape)
      if (size == 0) return;
    for (size_t i = shape.size(); i-- > 0; expected *= shape[i])
      if (shape[i] != 1 && whole(label, *strides.items[i]) != expected)
        refuse(label, str("is not contiguous: dimension ", i, " has the stride ", strides.items[i]->number, ", not ",
                          expected));
  }

  const ByteSource& file_;
  const std::string& source_;
  std::string folder_;
  std::unordered_map<std::string, ZipEntry> entries_;
};

}  // namespace

std::vector<StoredTensor> parse_torch_file(const ByteSource& file) { return TorchFile(file).tensors(); }

}  // namespace headrace
