#include "runtime/model/gguf/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr uint64_t kDefaultAlignment = 32, kMaxAlignment = uint64_t{1} << 20;
constexpr uint64_t kMaxNameBytes = 65535;   // the format's limit on keys
constexpr uint64_t kMaxHeaderBytes = kGiB;  // a large vocabulary with its merges is some 20 MiB

// Bytes of one value; 0 for strings and arrays, and for types that do not exist.
uint64_t type_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

// Walks the file from front to back; never past its end.
class Reader {
 public:
  explicit Reader(const ByteSource& file) : file_(file) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return file_.size() - position_; }

  [[noreturn]] void refuse(const std::string& what) const {
    throw_error(ExitCode::kBadInput, file_.name(), str(what, " (at byte ", position_, " of ", file_.size(), ")"));
  }

  // Appends the next bytes to `out`.
  void take(uint64_t count, const std::string& what, std::string* out) {
    if (count > left()) refuse(str(what, " declares ", count, " bytes; ", left(), " remain"));
    if (count > kMaxHeaderBytes - std::min(kMaxHeaderBytes, position_))
      refuse(str(what, " of ", count, " bytes: a header of more than ", format_bytes(kMaxHeaderBytes)));
    const size_t before = out->size();
    out->resize(before + count);
    copy(count, out->data() + before);
  }

  template <typename T>
  T value(const char* what) {
    if (sizeof(T) > left()) refuse(str(what, " needs ", sizeof(T), " bytes; ", left(), " remain"));
    T out;
    copy(sizeof out, reinterpret_cast<char*>(&out));
    return out;
  }

  std::string bytes(uint64_t count, const std::string& what) {
    std::string out;
    take(count, what, &out);
    return out;
  }
  std::string text(const std::string& what) { return bytes(value<uint64_t>("a string's length"), what); }

 private:
  static constexpr uint64_t kWindowBytes = kMiB;

  void copy(uint64_t count, char* to) {
    if (count > kWindowBytes) {
      file_.read(position_, to, count);
      position_ += count;
      return;
    }
    if (position_ + count > window_begin_ + window_.size()) {
      window_begin_ = position_;
      window_ = file_.text(position_, std::min(left(), kWindowBytes));
    }
    std::memcpy(to, window_.data() + (position_ - window_begin_), count);
    position_ += count;
  }

  const ByteSource& file_;
  uint64_t position_ = 0;
  std::string window_;  // of the file, from window_begin_ on
  uint64_t window_begin_ = 0;
};

uint32_t read_version(Reader* in) {
  if (in->left() < 4 || in->bytes(4, "the magic") != "GGUF") in->refuse("does not begin with \"GGUF\"");
  const uint32_t version = in->value<uint32_t>("the version");
  if (version != 0 && (version & 0xffffu) == 0)
    in->refuse(str("GGUF version ", version, ": a big-endian file; only little-endian ones are supported"));
  if (version != 2 && version != 3) in->refuse(str("GGUF version ", version, " is not supported (2 and 3 are)"));
  return version;
}

GgufType read_type(Reader* in, const std::string& key) {
  const uint32_t type = in->value<uint32_t>("a value's type");
  if (type > static_cast<uint32_t>(GgufType::kF64)) in->refuse(str("key \"", key, "\" has the unknown type ", type));
  return static_cast<GgufType>(type);
}

GgufValue read_array(Reader* in, const std::string& key) {
  GgufValue out;
  out.is_array = true;
  out.type = read_type(in, key);
  if (out.type == GgufType::kArray) in->refuse(str("key \"", key, "\" is an array of arrays, which is not supported"));
  out.count = in->value<uint64_t>("an array's length");
  const uint64_t smallest = out.type == GgufType::kString ? sizeof(uint64_t) : type_bytes(out.type);
  if (out.count > in->left() / smallest)
    in->refuse(str("key \"", key, "\" declares an array of ", out.count, " values; ", in->left(), " bytes remain"));
  if (out.type != GgufType::kString) {
    in->take(out.count * smallest, "an array", &out.bytes);
    return out;
  }
  const std::string what = "a string of key \"" + key + "\"";
  for (uint64_t i = 0; i < out.count; ++i) {
    const uint64_t length = in->value<uint64_t>("a string's length");
    out.bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
    in->take(length, what, &out.bytes);
  }
  return out;
}

void read_metadata(Reader* in, uint64_t count, GgufFile* file) {
  for (uint64_t i = 0; i < count; ++i) {
    const std::string raw = in->text("a key");
    if (raw.empty() || raw.size() > kMaxNameBytes) in->refuse(str("a key of ", raw.size(), " bytes"));
    const std::string key = printable(raw);
    GgufValue value;
    value.type = read_type(in, key);
    if (value.type == GgufType::kArray) {
      value = read_array(in, key);
    } else if (value.type == GgufType::kString) {
      value.bytes = in->text("key \"" + key + "\"");
    } else {
      value.bytes = in->bytes(type_bytes(value.type), "a value");
    }
    if (!file->metadata.emplace(raw, std::move(value)).second) in->refuse("the key \"" + key + "\" comes twice");
  }
}

// Elements and bytes of a tensor, from its shape; refuses what overflows or does not divide into blocks.
void size_tensor(const Reader& in, const std::string& label, GgufTensor* tensor) {
  uint64_t elements = 1;
  for (const int64_t size : tensor->shape)
    if (!checked_mul(elements, static_cast<uint64_t>(size), &elements) || elements > static_cast<uint64_t>(INT64_MAX))
      in.refuse(label + " has too many elements");
  const uint64_t block = static_cast<uint64_t>(tensor->type->block_elements);
  if (static_cast<uint64_t>(tensor->shape.back()) % block != 0)
    in.refuse(str(label, " has rows of ", tensor->shape.back(), " elements, which blocks of ", block, " (",
                  tensor->type->name, ") do not fill"));
  if (!checked_mul(elements / block, static_cast<uint64_t>(tensor->type->block_bytes), &tensor->bytes))
    in.refuse(label + " has too many bytes");
}

GgufTensor read_tensor(Reader* in) {
  GgufTensor tensor;
  tensor.name = in->text("a tensor's name");
  const std::string label = "tensor \"" + printable(tensor.name) + "\"";
  if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes)
    in->refuse(str("a tensor's name of ", tensor.name.size(), " bytes"));
  const uint32_t dimensions = in->value<uint32_t>("a tensor's dimensions");
  if (dimensions < 1 || dimensions > 4) in->refuse(str(label, " has ", dimensions, " dimensions; 1 to 4 are expected"));
  for (uint32_t i = 0; i < dimensions; ++i) {
    const int64_t size = in->value<int64_t>("a tensor's shape");
    if (size < 1) in->refuse(str(label, " has a dimension of ", size));
    tensor.shape.push_back(size);
  }
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  const uint32_t type = in->value<uint32_t>("a tensor's type");
  tensor.type = find_ggml_type(type);
  if (tensor.type == nullptr) in->refuse(str(label, " has the unknown type ", type));
  tensor.begin = in->value<uint64_t>("a tensor's offset");  // relative to the data; made absolute below
  size_tensor(*in, label, &tensor);
  return tensor;
}

uint64_t alignment_of(const GgufFile& file) {
  const GgufFields fields(file);
  const int64_t alignment = fields.integer_or("general.alignment", 1, kMaxAlignment, kDefaultAlignment);
  if (!std::has_single_bit(static_cast<uint64_t>(alignment)))
    fields.refuse("general.alignment", str(alignment, " is not a power of two"));
  return static_cast<uint64_t>(alignment);
}

// Makes offsets absolute; every tensor must lie in the data, aligned, and over no other.
void place_tensors(uint64_t header_bytes, uint64_t file_bytes, GgufFile* file) {
  const uint64_t alignment = alignment_of(*file);
  const uint64_t data = round_up(header_bytes, alignment);
  const auto refuse = [&](const GgufTensor& tensor, const std::string& what) {
    throw_error(ExitCode::kBadInput, file->source, "tensor \"" + printable(tensor.name) + "\" " + what);
  };
  std::vector<const GgufTensor*> in_order;
  for (GgufTensor& tensor : file->tensors) {
    if (tensor.begin % alignment != 0)
      refuse(tensor, str("is at offset ", tensor.begin, ", not a multiple of the alignment ", alignment));
    const uint64_t room = data < file_bytes ? file_bytes - data : 0;
    if (tensor.begin > room || tensor.bytes > room - tensor.begin)
      refuse(tensor,
             str("needs ", tensor.bytes, " bytes at offset ", tensor.begin, "; the file has ", room, " bytes of data"));
    tensor.begin += data;
    in_order.push_back(&tensor);
  }
  std::sort(in_order.begin(), in_order.end(), [](auto a, auto b) { return a->begin < b->begin; });
  for (size_t i = 1; i < in_order.size(); ++i)
    if (in_order[i]->begin < in_order[i - 1]->begin + in_order[i - 1]->bytes)
      refuse(*in_order[i], str("overlaps \"", printable(in_order[i - 1]->name), "\" at byte ", in_order[i]->begin));
}

}  // namespace

GgufFile parse_gguf(const ByteSource& source) {
  GgufFile file;
  file.source = source.name();
  Reader in(source);
  file.version = read_version(&in);
  const uint64_t tensors = in.value<uint64_t>("the number of tensors"), keys = in.value<uint64_t>("the number of keys");
  // The smallest tensor entry is 33 bytes (a name of one), the smallest key 14: a count beyond that is a lie.
  if (tensors > in.left() / 33) in.refuse(str("declares ", tensors, " tensors; ", in.left(), " bytes remain"));
  if (keys > in.left() / 14) in.refuse(str("declares ", keys, " keys; ", in.left(), " bytes remain"));
  read_metadata(&in, keys, &file);
  for (uint64_t i = 0; i < tensors; ++i) file.tensors.push_back(read_tensor(&in));
  place_tensors(in.position(), source.size(), &file);
  return file;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const GgufTensor& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace headrace
