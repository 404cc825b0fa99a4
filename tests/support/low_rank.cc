#include "tests/support/low_rank.h"

#include <cstring>
#include <map>
#include <vector>

#include "cache/base.h"
#include "runtime/base/input_file.h"
#include "runtime/model/files/zip_file.h"
#include "runtime/model/gguf/gguf.h"
#include "tests/support/gguf_writer.h"

namespace headrace::testing_support {
namespace {

struct Array {
  std::vector<int64_t> shape;
  std::vector<double> values;
};

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw_error(ExitCode::kBadInput, where, what);
}

// The .npy format, version 1: magic, the length of a Python literal, the literal, the elements.
Array parse_npy(std::string_view bytes, const std::string& source) {
  constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
  uint16_t header_bytes = 0;
  if (bytes.size() < 10 || bytes.substr(0, 8) != kMagic) refuse(source, "is no array of NumPy's version 1");
  std::memcpy(&header_bytes, bytes.data() + 8, sizeof header_bytes);
  if (header_bytes > bytes.size() - 10) refuse(source, "is cut short");
  const std::string header(bytes.substr(10, header_bytes));
  const auto holds = [&](const char* text) { return header.find(text) != std::string::npos; };
  const bool halves = holds("'descr': '<f2'");
  if (!halves && !holds("'descr': '<f8'")) refuse(source, "is of a type that is not read: " + printable(header));
  if (!holds("'fortran_order': False")) refuse(source, "is not in C order: " + printable(header));
  const size_t open = header.find("'shape': ("), close = header.find(')', open);
  if (open == std::string::npos || close == std::string::npos) refuse(source, "has no shape: " + printable(header));
  Array out;
  size_t elements = 1;
  for (size_t at = open + 10; at < close && header[at] >= '0' && header[at] <= '9';) {
    size_t digits = 0;
    out.shape.push_back(std::stoll(header.substr(at, close - at), &digits));
    elements *= static_cast<size_t>(out.shape.back());
    at += digits;
    while (at < close && (header[at] == ',' || header[at] == ' ')) ++at;
  }
  const std::string_view data = bytes.substr(10 + static_cast<size_t>(header_bytes));
  if (data.size() != elements * (halves ? 2 : 8)) refuse(source, str("has ", data.size(), " bytes of elements"));
  out.values.resize(elements);
  for (size_t i = 0; i < elements; ++i) {
    if (halves) {
      f16 half;
      std::memcpy(&half, data.data() + i * sizeof half, sizeof half);
      out.values[i] = f16_to_f32(half);
    } else {
      std::memcpy(&out.values[i], data.data() + i * sizeof(double), sizeof(double));
    }
  }
  return out;
}

std::map<std::string, Array> read_npz(const std::string& path) {
  const InputFile file(path);
  std::map<std::string, Array> out;
  for (const ZipEntry& entry : parse_zip(file)) {
    const std::string name = entry.name.substr(0, entry.name.rfind(".npy"));
    out[name] = parse_npy(file.text(entry.begin, entry.bytes), path + ", " + printable(entry.name));
  }
  return out;
}

// "blk.3.attn_q.weight" -> "layers.3.q_proj"; empty for other tensors.
std::string update_name(const std::string& tensor) {
  const std::map<std::string, std::string> projections = {
      {"attn_q", "q_proj"}, {"attn_k", "k_proj"}, {"attn_v", "v_proj"}, {"attn_output", "o_proj"}};
  if (tensor.rfind("blk.", 0) != 0) return "";
  const size_t dot = tensor.find('.', 4), end = tensor.rfind(".weight");
  if (dot == std::string::npos || end == std::string::npos || end < dot) return "";
  const auto found = projections.find(tensor.substr(dot + 1, end - dot - 1));
  return found == projections.end() ? "" : "layers." + tensor.substr(4, dot - 4) + "." + found->second;
}

// w + b . a. head_dim: not 0 if the rows of each head are rotary pairs in GGUF (2i + j for half j) but halves in
// Hugging Face's order (j * head_dim / 2 + i).
std::string merged(const GgufTensor& tensor, const InputFile& file, const Array& a, const Array& b, int64_t head_dim) {
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1], rank = a.shape[0];
  std::vector<float> w(static_cast<size_t>(rows * cols));
  dequantize(*tensor.type, file.text(tensor.begin, tensor.bytes).data(), DType::kF32, w.data(), rows * cols);
  std::vector<double> sums(static_cast<size_t>(cols));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t in_head = head_dim == 0 ? 0 : row % head_dim;
    const int64_t from = head_dim == 0 ? row : row - in_head + in_head % 2 * (head_dim / 2) + in_head / 2;
    sums.assign(sums.size(), 0.0);
    for (int64_t k = 0; k < rank; ++k) {
      const double scale = b.values[static_cast<size_t>(from * rank + k)];
      for (int64_t col = 0; col < cols; ++col)
        sums[static_cast<size_t>(col)] += scale * a.values[static_cast<size_t>(k * cols + col)];
    }
    for (int64_t col = 0; col < cols; ++col)
      w[static_cast<size_t>(row * cols + col)] += static_cast<float>(sums[static_cast<size_t>(col)]);
  }
  return std::string(reinterpret_cast<const char*>(w.data()), w.size() * sizeof(float));
}

void copy_metadata(const GgufFile& file, GgufWriter* out) {
  for (const auto& [key, value] : file.metadata) {
    const uint32_t type = static_cast<uint32_t>(value.type);
    if (value.is_array) {
      const std::string head = raw_bytes(type) + raw_bytes(value.count);
      out->add_raw(key, static_cast<uint32_t>(GgufType::kArray), head + std::string(value.bytes));
    } else {
      out->add_raw(key, type, value.type == GgufType::kString ? raw_string(value.bytes) : std::string(value.bytes));
    }
  }
}

}  // namespace

std::string merge_low_rank(const std::string& gguf, const std::string& update, const LongContext& context) {
  const InputFile input(gguf);
  const GgufFile file = parse_gguf(input);
  std::map<std::string, Array> arrays = read_npz(update);
  const GgufFields fields(file);
  if (fields.string_or("general.architecture", "") != "llama") refuse(gguf, "is not of the architecture llama");
  const int64_t head_dim = fields.integer("llama.rope.dimension_count", 2, 65536);
  const auto take = [&](const std::string& name) {
    const auto found = arrays.find(name);
    if (found == arrays.end()) refuse(update, "lacks the array " + name);
    Array out = std::move(found->second);
    arrays.erase(found);
    return out;
  };

  GgufWriter out;
  copy_metadata(file, &out);
  for (const char* key : {"general.name", "llama.context_length", "llama.rope.freq_base"}) out.remove(key);
  out.add_string("general.name", context.name);
  out.add_u32("llama.context_length", static_cast<uint32_t>(context.max_positions));
  out.add_f32("llama.rope.freq_base", static_cast<float>(take("rope_theta").values.at(0)));
  for (const GgufTensor& tensor : file.tensors) {
    GgufWriter::Tensor copy;
    copy.name = tensor.name;
    copy.dimensions.assign(tensor.shape.rbegin(), tensor.shape.rend());
    const std::string name = update_name(tensor.name);
    if (name.empty()) {
      copy.type = tensor.type->id;
      copy.bytes = input.text(tensor.begin, tensor.bytes);
    } else {
      const Array a = take(name + ".a"), b = take(name + ".b");
      if (tensor.shape.size() != 2 || a.shape.size() != 2 || b.shape.size() != 2 || a.shape[1] != tensor.shape[1] ||
          b.shape[0] != tensor.shape[0] || a.shape[0] != b.shape[1])
        refuse(update, "the update of " + name + " does not fit its matrix in " + gguf);
      const bool rotated = name.find(".q_proj") != std::string::npos || name.find(".k_proj") != std::string::npos;
      copy.bytes = merged(tensor, input, a, b, rotated ? head_dim : 0);  // type 0: F32
    }
    out.add_tensor(std::move(copy));
  }
  if (!arrays.empty())
    refuse(update, "holds " + printable(arrays.begin()->first) + ", for which " + gguf + " has no matrix");
  return out.finish();
}

}  // namespace headrace::testing_support
