#include <algorithm>
#include <cstring>

#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/thread_room.h"
#include "kernels/product/bodies.h"
#include "kernels/product/cpu_isa.h"
#include "kernels/weights/cpu_isa.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

// Bytes of w in a part. For many rows the part stays in the second-level cache; for few rows it is small enough to
// divide the work evenly.
constexpr int64_t kManyRows = 24;
constexpr int64_t kPartBytesOfManyRows = 192 * 1024;
constexpr int64_t kPartBytesOfFewRows = 1024 * 1024;
constexpr int64_t kPartsPerThread = 4;  // so that a delayed thread does not delay the rest
// Bytes of weights that are unpacked at a time for few rows, which read them once, from the first-level cache.
constexpr int64_t kUnpackedBytesOfFewRows = 24 * 1024;

// Columns per part. The division of the work never changes a bit.
int64_t cols_per_part(const ProductParams& params, int64_t tile_cols, int threads) {
  const int64_t row_bytes = params.k * static_cast<int64_t>(dtype_bytes(params.type));
  const int64_t most = (params.rows > kManyRows ? kPartBytesOfManyRows : kPartBytesOfFewRows) / row_bytes;
  const int64_t fair = ceil_div(params.n, threads == 1 ? 1 : threads * kPartsPerThread);
  return ceil_div(std::max<int64_t>(std::min(fair, most), 1), tile_cols) * tile_cols;
}

// Columns that are unpacked at a time.
int64_t cols_at_once(int64_t rows, int64_t unpacked_bytes, int tile_cols) {
  const int64_t most = rows > kManyRows ? kPartBytesOfManyRows : kUnpackedBytesOfFewRows;
  return std::max<int64_t>(1, most / unpacked_bytes / tile_cols) * tile_cols;
}

int64_t block_room_bytes(int64_t rows, int64_t k) { return rows * k * int64_t{sizeof(float)}; }

class Product {
 public:
  Product(const ProductParams& params, int threads)
      : params_(params),
        kernels_(HEADRACE_PICK_ISA(product_kernels)),
        weights_(HEADRACE_PICK_ISA(weight_kernels)),
        cols_(cols_per_part(params, kernels_.tile_cols, threads)) {
    for (int i = 0; i < params.weight.count; ++i) {
      parts_[i + 1] = parts_[i] + ceil_div(params.weight.parts[i].rows, cols_);
    }
  }
  int64_t parts() const { return parts_[params_.weight.count]; }
  void run(int64_t index) const {
    int i = 0;
    int64_t first = 0;  // the weight part's first column
    for (; index >= parts_[i + 1]; ++i) first += params_.weight.parts[i].rows;
    const WeightPart& weight = params_.weight.parts[i];
    const int64_t begin = (index - parts_[i]) * cols_, end = std::min(weight.rows, begin + cols_);
    if (is_plain(weight.type)) {
      const uint64_t row_bytes = static_cast<uint64_t>(params_.k) * dtype_bytes(params_.type);
      kernels_.part(part_of(static_cast<const std::byte*>(weight.data) + static_cast<uint64_t>(begin) * row_bytes,
                            first + begin, first + end));
    } else if (params_.path == ProductPath::kDecode && params_.rows <= kernels_.max_block_rows) {
      const std::byte* const w =
          static_cast<const std::byte*>(weight.data) + weight_bytes(weight.type, begin, params_.k);
      kernels_.blocks(
          part_of(w, first + begin, first + end), weight.type,
          reinterpret_cast<float*>(room_of_thread(static_cast<uint64_t>(block_room_bytes(params_.rows, params_.k)))));
    } else {
      unpack_and_multiply(weight, first, begin, end);
    }
  }

 private:
  ProductPart part_of(const void* w, int64_t col_begin, int64_t col_end) const {
    ProductPart part{};
    part.x = params_.x;
    part.w = w;
    part.bias = params_.bias;
    part.residual = params_.residual;
    part.out = params_.out;
    part.n = params_.n;
    part.k = params_.k;
    part.row_begin = 0;
    part.row_end = params_.rows;
    part.col_begin = col_begin;
    part.col_end = col_end;
    part.type = params_.type;
    part.out_type = params_.out_type;
    part.w_type = params_.type;
    part.unpacked = false;
    return part;
  }

  // Columns [begin, end) of the weight part, a few at a time: each is unpacked once for all rows. Column 0 of the part
  // is column `first` of the product. Prefill rounds weights to the product's type.
  void unpack_and_multiply(const WeightPart& weight, int64_t first, int64_t begin, int64_t end) const {
    const WeightTypeInfo& info = weight_type_info(weight.type);
    const DType to = kernels_.block_type(params_.type);
    const DType values = params_.path == ProductPath::kPrefill ? params_.type : to;
    const int64_t blocks = params_.k / info.block_elements, row_bytes = blocks * info.block_bytes;
    const int64_t unpacked = params_.k * static_cast<int64_t>(dtype_bytes(to));
    const int64_t step = cols_at_once(params_.rows, unpacked, kernels_.tile_cols);
    std::byte* const room = room_of_thread(static_cast<uint64_t>(step * unpacked));
    for (int64_t col = begin; col < end; col += step) {
      const int64_t stop = std::min(end, col + step);
      weights_.unpack(weight.type, static_cast<const std::byte*>(weight.data) + col * row_bytes, (stop - col) * blocks,
                      values, to, room);
      ProductPart part = part_of(room, first + col, first + stop);
      part.w_type = to;
      part.unpacked = true;
      kernels_.part(part);
    }
  }

  const ProductParams& params_;
  const ProductKernels& kernels_;
  const WeightKernels& weights_;
  const int64_t cols_;
  int64_t parts_[4] = {};  // parts of the work before each part of the weight
};

// The rows of x, group after group.
const std::byte* grouped_rows(const GroupedProductParams& params, ThreadPool& pool) {
  if (params.from == nullptr) return static_cast<const std::byte*>(params.x);
  for_rows(pool, params.rows, params.k, [&](int64_t row) {
    const int64_t from = params.from[row];
    CHECK(from >= 0 && from < params.x_rows, "from=", from, " of ", params.x_rows);
    std::memcpy(at(params.room, row * params.k, params.type), at(params.x, from * params.k, params.type),
                static_cast<size_t>(params.k) * dtype_bytes(params.type));
  });
  return static_cast<const std::byte*>(params.room);
}

Weight matrix_at(const GroupedProductParams& params, uint64_t index) {
  Weight weight = params.weight;
  for (int i = 0; i < weight.count; ++i) {
    weight.parts[i].data = static_cast<const std::byte*>(weight.parts[i].data) + index * params.stride;
  }
  return weight;
}

}  // namespace

uint64_t product_thread_bytes(const ProductParams& params) {
  const ProductKernels& kernels = HEADRACE_PICK_ISA(product_kernels);
  const bool decodes = params.path == ProductPath::kDecode;
  int64_t most = decodes ? block_room_bytes(std::min(params.rows, kernels.max_block_rows), params.k) : 0;
  if (!decodes || params.rows > kernels.max_block_rows) {
    const int64_t unpacked = params.k * static_cast<int64_t>(dtype_bytes(kernels.block_type(params.type)));
    for (const int64_t rows : {std::min(params.rows, kManyRows), params.rows}) {
      most = std::max(most, cols_at_once(rows, unpacked, kernels.tile_cols) * unpacked);
    }
  }
  return whole_pages(static_cast<uint64_t>(most));
}

void product(const ProductParams& params, ThreadPool& pool) {
  const Product work(params, pool.threads());
  pool.parallel_for(work.parts(), [&](int64_t index, int) { work.run(index); });
}

// One group after another, each as a product of its own.
void grouped_product(const GroupedProductParams& params, ThreadPool& pool) {
  const std::byte* const x = grouped_rows(params, pool);
  const int64_t listed = params.present != nullptr ? params.listed() : params.groups;
  for (int64_t i = 0; i < listed; ++i) {
    const int64_t group = params.present != nullptr ? params.present[i] : i;
    if (group < 0) break;
    CHECK(group < params.groups, "group=", group, " of ", params.groups);
    const auto index = static_cast<uint64_t>(params.matrices != nullptr ? params.matrices[group] : group);
    const int64_t first = params.begin[group], rows = params.begin[group + 1] - first;
    if (rows == 0) continue;
    ProductParams one{};
    one.x = x + static_cast<uint64_t>(first * params.k) * dtype_bytes(params.type);
    one.weight = matrix_at(params, index);
    if (params.bias != nullptr) one.bias = static_cast<const std::byte*>(params.bias) + index * params.bias_stride;
    one.out =
        static_cast<std::byte*>(params.out) + static_cast<uint64_t>(first * params.n) * dtype_bytes(params.out_type);
    one.type = params.type;
    one.out_type = params.out_type;
    one.rows = rows;
    one.n = params.n;
    one.k = params.k;
    one.path = ProductPath::kDecode;
    product(one, pool);
  }
}

}  // namespace headrace::kernels::cpu
