#include "runtime/model/read_weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/weights/blocks.h"
#include "runtime/model/convert.h"

namespace headrace {
namespace {

// The size of reads whose rows are quantised at once. Where rows are permuted by head, each read reads whole heads of
// the file, and 128 rows of 4096 weights are one head.
constexpr uint64_t kQuantisedBytes = 2 * kMiB;

float value_at(DType type, const std::byte* values, int64_t index) {
  float value = 0;
  convert_elements(type, reinterpret_cast<const char*>(values) + static_cast<uint64_t>(index) * dtype_bytes(type),
                   DType::kF32, &value, 1);
  return value;
}

std::string describe_damage(const TensorSource& source, const TensorInfo& tensor, int64_t index, DType dtype,
                            float value) {
  const std::string& file = source.stored_range(tensor).source->name();
  const char* const kind = std::isnan(value) ? "NaN" : value > 0 ? "infinity" : "-infinity";
  return str(file, ": tensor ", printable(tensor.name), " holds ", kind, " at row ", index / tensor.cols(), ", column ",
             index % tensor.cols(), " (stored as ", tensor.stored_type, ", read as ", dtype_name(dtype),
             dtype == DType::kF16 ? "; --dtype bf16 has a larger range)" : ")");
}

// Every weight of the file is finite, and yet the block that has weight `index` is not.
std::string describe_overflow(const TensorSource& source, const TensorInfo& tensor, WeightType type, int64_t index) {
  const WeightTypeInfo& info = weight_type_info(type);
  const int64_t first = index / info.block_elements * info.block_elements;
  return str(source.stored_range(tensor).source->name(), ": tensor ", printable(tensor.name),
             " cannot be quantised to ", info.name, ": the scale of the block at row ", first / tensor.cols(),
             ", column ", first % tensor.cols(), " exceeds f16 (stored as ", tensor.stored_type,
             "; leave --weights out)");
}

// Row after row is read by `read(begin, end, dst)` on several threads, each of which then looks at what it has read,
// still in its core's cache: `damaged(dst, rows)` is the index of the first value that is NaN or infinite, or -1.
// Returns the first such index of all rows, or -1.
template <typename Read, typename Damaged>
int64_t read_slices(int64_t rows, int64_t cols, uint64_t row_bytes, std::byte* dst, ThreadPool& pool, const Read& read,
                    const Damaged& damaged) {
  const int64_t slices = std::min<int64_t>(rows, pool.threads() * 4);
  std::atomic<int64_t> worst = INT64_MAX;
  pool.parallel_for(slices, [&](int64_t slice, int) {
    const int64_t begin = rows * slice / slices, end = rows * (slice + 1) / slices;
    std::byte* const to = dst + static_cast<uint64_t>(begin) * row_bytes;
    read(begin, end, to);
    const int64_t found = damaged(to, end - begin);
    if (found < 0) return;
    const int64_t index = begin * cols + found;
    for (int64_t before = worst.load(); index < before && !worst.compare_exchange_weak(before, index);) {
    }
  });
  return worst.load() == INT64_MAX ? -1 : worst.load();
}

// The index of the first weight of `count` blocks that is NaN or infinite, once rounded to `dtype`, or -1. A block
// whose scales allow that is dequantised to see.
int64_t first_wrong(WeightType type, const std::byte* blocks, int64_t count, DType dtype) {
  constexpr int64_t kMaxElements = 256;
  const WeightTypeInfo& info = weight_type_info(type);
  CHECK(info.block_elements <= kMaxElements, info.name);
  alignas(4) std::byte values[kMaxElements * sizeof(float)];
  for (int64_t i = 0; i < count; ++i) {
    i += first_suspect_block(type, blocks + i * info.block_bytes, count - i, dtype);
    if (i == count) break;
    dequantise_blocks(type, blocks + i * info.block_bytes, 1, dtype, values);
    const int64_t found = first_not_finite(dtype, values, info.block_elements);
    if (found < info.block_elements) return i * info.block_elements + found;
  }
  return -1;
}

// The weight with the index `index` in blocks.
float weight_at(WeightType type, const std::byte* blocks, int64_t index, DType dtype) {
  constexpr int64_t kMaxElements = 256;
  const WeightTypeInfo& info = weight_type_info(type);
  alignas(4) std::byte values[kMaxElements * sizeof(float)];
  dequantise_blocks(type, blocks + index / info.block_elements * info.block_bytes, 1, dtype, values);
  return value_at(dtype, values, index % info.block_elements);
}

}  // namespace

std::string convert_rows(const TensorSource& source, const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                         DType dtype, std::byte* dst, ThreadPool& pool) {
  const int64_t cols = tensor.cols();
  const int64_t index = read_slices(
      row_end - row_begin, cols, static_cast<uint64_t>(cols) * dtype_bytes(dtype), dst, pool,
      [&](int64_t begin, int64_t end, std::byte* to) {
        source.read_rows(tensor, row_begin + begin, row_begin + end, dtype, to);
      },
      [&](const std::byte* values, int64_t rows) {
        const int64_t found = first_not_finite(dtype, values, rows * cols);
        return found == rows * cols ? -1 : found;
      });
  if (index < 0) return "";
  return describe_damage(source, tensor, row_begin * cols + index, dtype, value_at(dtype, dst, index));
}

std::string copy_blocks(const TensorSource& source, const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                        DType dtype, std::byte* dst, ThreadPool& pool) {
  const WeightType type = tensor.block_type().value();
  const int64_t cols = tensor.cols(), blocks_a_row = cols / weight_type_info(type).block_elements;
  const int64_t index = read_slices(
      row_end - row_begin, cols, weight_bytes(type, 1, cols), dst, pool,
      [&](int64_t begin, int64_t end, std::byte* to) {
        source.read_blocks(tensor, row_begin + begin, row_begin + end, to);
      },
      [&](const std::byte* blocks, int64_t rows) { return first_wrong(type, blocks, rows * blocks_a_row, dtype); });
  if (index < 0) return "";
  return describe_damage(source, tensor, row_begin * cols + index, dtype, weight_at(type, dst, index, dtype));
}

std::string quantise_rows(const TensorSource& source, const TensorInfo& tensor, WeightType type, int64_t row_begin,
                          int64_t row_end, DType dtype, std::byte* dst, ThreadPool& pool) {
  const int64_t cols = tensor.cols(), blocks_a_row = cols / weight_type_info(type).block_elements;
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(kQuantisedBytes / sizeof(float)) / cols);
  const int64_t index = read_slices(
      row_end - row_begin, cols, weight_bytes(type, 1, cols), dst, pool,
      [&](int64_t begin, int64_t end, std::byte* to) {
        std::vector<float> values(static_cast<size_t>(std::min(most, end - begin) * cols));
        for (int64_t row = begin, rows = 0; row < end; row += rows) {
          rows = std::min(most, end - row);
          source.read_rows(tensor, row_begin + row, row_begin + row + rows, DType::kF32, values.data());
          quantise_blocks(type, values.data(), rows * blocks_a_row, to + weight_bytes(type, row - begin, cols));
        }
      },
      [&](const std::byte* blocks, int64_t rows) { return first_wrong(type, blocks, rows * blocks_a_row, dtype); });
  if (index < 0) return "";
  const int64_t in_tensor = row_begin * cols + index, row = in_tensor / cols;
  std::vector<float> values(static_cast<size_t>(cols));
  source.read_rows(tensor, row, row + 1, DType::kF32, values.data());
  const int64_t col = first_not_finite(DType::kF32, values.data(), cols);
  if (col < cols)
    return describe_damage(source, tensor, row * cols + col, DType::kF32, values[static_cast<size_t>(col)]);
  if (!std::isfinite(weight_at(type, dst, index, DType::kF32)))
    return describe_overflow(source, tensor, type, in_tensor);
  return describe_damage(source, tensor, in_tensor, dtype, weight_at(type, dst, index, dtype));
}

}  // namespace headrace
