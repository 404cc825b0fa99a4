#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <vector>

#include "runtime/model/convert.h"
#include "runtime/model/decoder_tensors.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/files/gguf_parts.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/files/tensor_parts.h"
#include "runtime/model/gguf/dequantize.h"
#include "runtime/model/gguf/gguf.h"
#include "runtime/model/gguf/gguf_vocabulary.h"

namespace headrace {
namespace {

class GgufCheckpoint final : public Checkpoint {
 public:
  explicit GgufCheckpoint(const std::string& path);
  void read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type, void* dst) const override;
  void read_blocks(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, void* dst) const override;
  ByteRange stored_range(const TensorInfo& tensor) const override {
    const GgufTensor& from = stored(tensor).tensor;
    return input_.range(from.begin, from.bytes);
  }
  std::vector<FileStamp> files() const override { return input_.stamps(); }
  DType natural_dtype() const override;
  Tokenizer load_tokenizer() const override { return Tokenizer::from_vocabulary(gguf_vocabulary(file_)); }
  std::string chat_template() const override { return GgufFields(file_).string_or("tokenizer.chat_template", ""); }

 private:
  struct Stored {
    GgufTensor tensor;  // where its bytes are
    RowOrder order;
  };
  const Stored& stored(const TensorInfo& tensor) const { return stored_[index_of(tensor)]; }
  void read_plain(const GgufTensor& from, uint64_t begin, int64_t count, DType type, void* dst) const;
  void read_ordered(const Stored& from, int64_t row_begin, int64_t row_end, char* out) const;

  GgufParts input_;
  const GgufFile& file_;
  std::vector<Stored> stored_;  // beside tensors()
};

GgufCheckpoint::GgufCheckpoint(const std::string& path) : input_(path), file_(input_.header()) {
  path_ = path;
  format_ = str("GGUF v", file_.version);
  const GgufForm& form = gguf_form(file_);
  config_ = gguf_config(file_, input_);
  std::vector<TensorInfo> in_file, tensors;
  for (const GgufTensor& tensor : file_.tensors)
    in_file.push_back(
        {decoder_name(tensor.name, form, config_.layer_count()), tensor.shape, tensor.type->name, tensor.bytes});
  std::unordered_set<std::string> used;
  for (DecoderTensor& tensor : decoder_tensors(config_)) used.insert(std::move(tensor.name));
  for (TensorPart& part : decoder_parts(config_, in_file, path_, {.rotary_pairs = form.rotary_pairs})) {
    if (part.tensor.name == "rope_freqs.weight") continue;  // part of the config
    if (!used.contains(part.tensor.name)) part.tensor.name = file_.tensors[part.stored].name;
    GgufTensor from = file_.tensors[part.stored];
    const std::vector<int64_t>& shape = in_file[part.stored].shape;
    uint64_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= static_cast<uint64_t>(shape[i]);
    from.shape = part.tensor.shape;
    if (part.order.stride == part.order.head_dim) {  // else others' rows are between
      from.begin += from.bytes / rows * static_cast<uint64_t>(part.first_row);
      from.bytes = part.tensor.stored_bytes;
    }
    stored_.push_back({std::move(from), part.order});
    tensors.push_back(std::move(part.tensor));
  }
  set_tensors(std::move(tensors));
  if (find("mtp.fc.weight") == nullptr) config_.mtp.reset();  // the file is without its block
}

void GgufCheckpoint::read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type,
                               void* dst) const {
  check_rows(tensor, row_begin, row_end);
  const Stored& at = stored(tensor);
  const GgufTensor& from = at.tensor;
  if (!can_read(*from.type))
    throw_error(ExitCode::kBadInput, path_,
                str("tensor \"", printable(from.name), "\" is stored as ", from.type->name, ", which cannot be read"),
                "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, IQ3_S, "
                "IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS and MXFP4 can");
  const int64_t cols = tensor.cols(), count = (row_end - row_begin) * cols;
  const uint64_t row_bytes = static_cast<uint64_t>(cols / from.type->block_elements * from.type->block_bytes);
  if (at.order.as_stored()) {
    read_plain(from, static_cast<uint64_t>(row_begin) * row_bytes, count, type, dst);
  } else if (tensor.shape.size() == 2) {
    std::vector<char> rows(static_cast<uint64_t>(row_end - row_begin) * row_bytes);
    read_ordered(at, row_begin, row_end, rows.data());
    dequantize(*from.type, rows.data(), type, dst, count);
  } else if (row_begin < row_end) {  // a vector: its elements are the rows
    const size_t bytes = dtype_bytes(type);
    std::vector<char> all(static_cast<size_t>(cols) * bytes);
    read_plain(from, 0, cols, type, all.data());
    read_in_order(at.order, 0, cols, bytes, static_cast<char*>(dst), [&](int64_t first, char* head) {
      std::memcpy(head, all.data() + static_cast<size_t>(first) * bytes,
                  static_cast<size_t>(at.order.head_dim) * bytes);
    });
  }
}

// `count` weights, from byte `begin` of the tensor on.
void GgufCheckpoint::read_plain(const GgufTensor& from, uint64_t begin, int64_t count, DType type, void* dst) const {
  const auto block_bytes = static_cast<uint64_t>(from.type->block_bytes);
  const auto bytes = static_cast<uint64_t>(count / from.type->block_elements) * block_bytes;
  if (const std::optional<DType> plain = plain_type(*from.type))
    return read_converted(*plain, {&input_, from.begin + begin, bytes}, type, dst);
  std::vector<char> buffer(std::min(bytes, kReadBytes / block_bytes * block_bytes));
  char* out = static_cast<char*>(dst);
  for (uint64_t done = 0; done < bytes; done += buffer.size()) {
    const uint64_t some = std::min<uint64_t>(buffer.size(), bytes - done);
    input_.read(from.begin + begin + done, buffer.data(), some);
    const int64_t elements = static_cast<int64_t>(some / block_bytes) * from.type->block_elements;
    dequantize(*from.type, buffer.data(), type, out, elements);
    out += static_cast<size_t>(elements) * dtype_bytes(type);
  }
}

// Rows as they are stored, in the decoder's order.
void GgufCheckpoint::read_ordered(const Stored& from, int64_t row_begin, int64_t row_end, char* out) const {
  const GgmlType& type = *from.tensor.type;
  const auto row_bytes = static_cast<uint64_t>(from.tensor.shape.back() / type.block_elements * type.block_bytes);
  read_in_order(from.order, row_begin, row_end, row_bytes, out, [&](int64_t first, char* head) {
    input_.read(from.tensor.begin + static_cast<uint64_t>(first) * row_bytes, head,
                static_cast<uint64_t>(from.order.head_dim) * row_bytes);
  });
}

void GgufCheckpoint::read_blocks(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, void* dst) const {
  check_rows(tensor, row_begin, row_end);
  const Stored& from = stored(tensor);
  if (!from.order.as_stored()) return read_ordered(from, row_begin, row_end, static_cast<char*>(dst));
  const uint64_t row_bytes = weight_bytes(tensor.block_type().value(), 1, tensor.cols());
  input_.read(from.tensor.begin + static_cast<uint64_t>(row_begin) * row_bytes, dst,
              static_cast<uint64_t>(row_end - row_begin) * row_bytes);
}

DType GgufCheckpoint::natural_dtype() const {
  uint64_t f32 = 0, f16 = 0, other = 0;
  for (const GgufTensor& tensor : file_.tensors) {
    const std::string_view name = tensor.type->name;
    const uint64_t elements = tensor.bytes / static_cast<uint64_t>(tensor.type->block_bytes) *
                              static_cast<uint64_t>(tensor.type->block_elements);
    (name == "F32" ? f32 : name == "F16" ? f16 : other) += elements;
  }
  if (f32 > f16 && f32 > other) return DType::kF32;
  return f16 > other ? DType::kF16 : DType::kBF16;
}

}  // namespace

std::unique_ptr<Checkpoint> open_gguf(const std::string& path) { return std::make_unique<GgufCheckpoint>(path); }

}  // namespace headrace
