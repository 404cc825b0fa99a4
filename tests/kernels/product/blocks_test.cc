// Products of quantised weights: to the bit those of the same weights unpacked, or in f32 where the product does not
// round weights; whatever the number of rows and threads (docs/design.md, section 6, rule 1).
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/elementwise/op.h"
#include "kernels/product/op.h"
#include "tests/support/kernel_test.h"
#include "tests/support/sanitized.h"
#include "tests/support/weight_blocks.h"

// Counts what is allocated with an alignment of its own: what a CPU's threads keep for unpacked weights.
static std::atomic<uint64_t> aligned_bytes{0};
void* operator new[](size_t bytes, std::align_val_t alignment) {
  aligned_bytes += bytes;
  const auto unit = static_cast<size_t>(alignment);
  void* const memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }

namespace headrace {
namespace {

using testing_support::decode;
using testing_support::DeviceArray;
using testing_support::expect_close;
using testing_support::kAllTypes;
using testing_support::kQuantisedTypes;
using testing_support::random_blocks;
using testing_support::random_values;
using testing_support::rounded;
using testing_support::weights_of;

class BlocksProductTest : public testing_support::KernelTest {
 protected:
  DeviceArray store(WeightType type, const std::vector<std::byte>& blocks, int64_t n, int64_t k);
  // Of `rows` rows of x from `first` on.
  std::vector<std::byte> run(const Weight& weight, DType type, DType out_type, const std::vector<float>& x,
                             int64_t rows, int64_t first = 0, ProductPath path = ProductPath::kDecode);
  void check_gated(const Weight& weight, DType type, int64_t rows, const std::string& what);
  bool cuda() { return stream().backend() == Backend::kCuda; }
  // Whether the decode path multiplies weights as their formula gives them.
  bool unrounded(DType type) {
    if (cuda()) return type == DType::kBF16;
    return type != DType::kBF16 || kernels::isa() != kernels::Isa::kAvx512Bf16;
  }
  // Products of the weight in blocks and of the same weight unpacked, rounded to `type` or in f32.
  DeviceArray unpacked(const Weight& blocks, DType type);  // its values
  void check_rounded(const Weight& blocks, DType type, const std::string& what);
  void check_unrounded(const Weight& blocks, DType type, const std::string& what);
};
INSTANTIATE_KERNEL_TEST(BlocksProductTest);

// That every type holds.
std::vector<float> common_values(uint64_t seed, int64_t count) {
  return rounded(rounded(random_values(seed, count), DType::kF16), DType::kBF16);
}

DeviceArray BlocksProductTest::store(WeightType type, const std::vector<std::byte>& blocks, int64_t n, int64_t k) {
  const DeviceArray from = upload(blocks);
  DeviceArray stored = output(stored_weight_bytes(stream().backend(), type, n, k));
  store_weight(
      {.blocks = from.data(), .type = type, .out = stored.data(), .rows = n, .cols = k, .row_begin = 0, .row_end = n},
      stream());
  download(stored);  // waits before the blocks go
  return stored;
}

std::vector<std::byte> BlocksProductTest::run(const Weight& weight, DType type, DType out_type,
                                              const std::vector<float>& x, int64_t rows, int64_t first,
                                              ProductPath path) {
  const int64_t n = weight.rows(), k = weight.cols;
  const auto rows_from = [&](const std::vector<float>& all, int64_t cols) {
    return std::vector<float>(all.begin() + first * cols, all.begin() + (first + rows) * cols);
  };
  const DeviceArray x_array = upload(rows_from(x, k), type), bias = upload(common_values(2, n), type),
                    residual = upload(rows_from(common_values(3, (first + rows) * n), n), out_type);
  const DeviceArray out = output(static_cast<uint64_t>(rows * n) * dtype_bytes(out_type));
  product({.x = x_array.data(),
           .weight = weight,
           .bias = bias.data(),
           .residual = residual.data(),
           .out = out.data(),
           .type = type,
           .out_type = out_type,
           .rows = rows,
           .n = n,
           .k = k,
           .path = path},
          stream());
  return download(out);
}

DeviceArray BlocksProductTest::unpacked(const Weight& blocks, DType type) {
  const int64_t n = blocks.rows();
  DeviceArray values = output(static_cast<uint64_t>(n * blocks.cols) * dtype_bytes(type));
  dequantise({.weight = blocks,
              .ids = nullptr,
              .first_row = 0,
              .rows = n,
              .type = type,
              .out_type = type,
              .out = values.data()},
             stream());
  return values;
}

void BlocksProductTest::check_rounded(const Weight& blocks, DType type, const std::string& what) {
  const int64_t n = blocks.rows(), k = blocks.cols;
  const DeviceArray values = unpacked(blocks, type);
  // In two parts: CUDA multiplies it with the kernel for blocks then, not with the library.
  const int64_t upper = n / 2;
  const Weight plain = {.parts = {{values.data(), plain_weight_type(type), upper},
                                  {values.data() + upper * k * static_cast<int64_t>(dtype_bytes(type)),
                                   plain_weight_type(type), n - upper},
                                  {}},
                        .count = 2,
                        .cols = k};
  const std::vector<float> x = common_values(1, 29 * k);
  for (const ProductPath path : {ProductPath::kDecode, ProductPath::kPrefill}) {
    if (path == ProductPath::kPrefill ? cuda() : unrounded(type)) continue;
    for (const int64_t rows : {1, 2, 6, 7, 29}) {
      for (const DType out_type : {type, DType::kF32}) {
        EXPECT_TRUE(run(blocks, type, out_type, x, rows, 0, path) == run(plain, type, out_type, x, rows, 0, path))
            << what << " as " << dtype_name(type) << " to " << dtype_name(out_type) << ", " << rows << " rows";
      }
    }
  }
}

void BlocksProductTest::check_unrounded(const Weight& blocks, DType type, const std::string& what) {
  if (cuda() || !unrounded(type)) return;  // CUDA's: AreCloseToTheExactSum
  const int64_t n = blocks.rows(), k = blocks.cols;
  const DeviceArray values = unpacked(blocks, DType::kF32);
  const std::vector<float> x = common_values(1, 29 * k);
  for (const int64_t rows : {1, 2, 6, 7, 29}) {
    const std::vector<float> expected =
        decode(run(plain_weight(values.data(), DType::kF32, n, k), DType::kF32, DType::kF32, x, rows), DType::kF32);
    for (const DType out_type : {type, DType::kF32}) {
      EXPECT_TRUE(decode(run(blocks, type, out_type, x, rows), out_type) == rounded(expected, out_type))
          << what << " as " << dtype_name(type) << " to " << dtype_name(out_type) << ", " << rows << " rows";
    }
  }
}

TEST_P(BlocksProductTest, HaveTheBitsOfUnpackedWeights) {
  for (const WeightType type : kQuantisedTypes) {
    const int64_t block = weight_type_info(type).block_elements;
    int64_t turn = 0;
    for (const int64_t n : {3, 98}) {
      const int64_t k = block * (1 + turn++ * 3 % (block > 32 ? 4 : 9));
      const DeviceArray stored = store(type, random_blocks(type, static_cast<uint64_t>(n), n, k), n, k);
      const Weight weight = {.parts = {{stored.data(), type, n}, {}, {}}, .count = 1, .cols = k};
      for (const DType compute : kAllTypes) {
        const std::string what = str(weight_type_info(type).name, " ", n, " x ", k);
        check_rounded(weight, compute, what);
        check_unrounded(weight, compute, what);
      }
    }
  }
}

// What the planner counts is what the threads take at most, with so many rows or fewer.
TEST_P(BlocksProductTest, ThreadsKeepNoMoreThanIsPlanned) {
  if (cuda()) return;
  constexpr int64_t kN = 512, kK = 2048, kRows = 300;
  const std::vector<std::byte> blocks = random_blocks(WeightType::kQ4K, 1, kN, kK);
  const std::vector<float> x = common_values(1, kRows * kK);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const ProductPath path : {ProductPath::kDecode, ProductPath::kPrefill}) {
      ProductParams planned{};
      planned.type = planned.out_type = type;
      planned.rows = kRows, planned.n = kN, planned.k = kK;
      planned.path = path;
      const uint64_t most = product_kind_bytes({.backend = Backend::kCpu, .unpacking_threads = 2}, planned);
      EXPECT_EQ(product_kind_bytes({.backend = Backend::kCpu}, planned), 0u);
      for (const int64_t rows : {1, 6, 7, 8, 24, 25, 300}) {
        open(2);  // new threads
        const DeviceArray stored = store(WeightType::kQ4K, blocks, kN, kK);
        aligned_bytes = 0;
        run({.parts = {{stored.data(), WeightType::kQ4K, kN}, {}, {}}, .count = 1, .cols = kK}, type, type, x, rows, 0,
            path);
        EXPECT_GT(aligned_bytes, 0u);
        EXPECT_LE(aligned_bytes, most) << rows << " rows of " << dtype_name(type);
      }
    }
  }
}

// More columns than are unpacked at a time, three parts (one of them plain) and every number of threads.
TEST_P(BlocksProductTest, PartsAndThreadsChangeNoBit) {
  const int64_t k = testing::kSanitized ? 256 : 1536;
  for (const auto& [compute, a_type] : {std::pair{DType::kF32, WeightType::kQ4K},
                                        {DType::kF16, WeightType::kQ2K},
                                        {DType::kBF16, WeightType::kQ4K},
                                        {DType::kBF16, WeightType::kIQ4XS},  // CUDA has two kernels for the parts
                                        {DType::kBF16, WeightType::kIQ3S}}) {
    std::vector<std::byte> first;
    for (const int threads : {1, 2, 3}) {
      open(threads);
      const DeviceArray a = store(a_type, random_blocks(a_type, 1, 75, k), 75, k),
                        b = upload(random_values(2, 34 * k), compute),
                        c = store(WeightType::kQ8_0, random_blocks(WeightType::kQ8_0, 3, 41, k), 41, k);
      const Weight weight = {.parts = {{a.data(), a_type, 75},
                                       {b.data(), plain_weight_type(compute), 34},
                                       {c.data(), WeightType::kQ8_0, 41}},
                             .count = 3,
                             .cols = k};
      check_rounded(weight, compute, str(threads, " threads"));
      const std::vector<std::byte> out = run(weight, compute, compute, random_values(4, 2 * k), 2);
      if (first.empty()) first = out;
      EXPECT_TRUE(out == first) << threads << " threads, " << dtype_name(compute);
      const std::vector<std::byte> many = run(weight, compute, compute, random_values(4, 70 * k), 70);
      EXPECT_EQ(std::memcmp(many.data(), out.data(), out.size()), 0) << "among 70 rows, " << dtype_name(compute);
    }
  }
  open(2);
}

// The values themselves, against a sum in double precision, and so close that a kernel fails that rounds weights where
// it should not.
TEST_P(BlocksProductTest, AreCloseToTheExactSum) {
  const DType type = DType::kBF16;
  const bool cuda = this->cuda();
  for (const WeightType weight_type : kQuantisedTypes) {
    const char* const name = weight_type_info(weight_type).name;
    // On CUDA also more columns than are multiplied with k in four runs, and as many rows as each kernel takes.
    for (const auto& [n, rows] :
         cuda ? std::vector<std::pair<int64_t, int64_t>>{{37, 2}, {37, 11}, {37, 30}, {37, 70}, {16424, 2}, {16424, 19}}
              : std::vector<std::pair<int64_t, int64_t>>{{37, 11}}) {
      const int64_t k = weight_type_info(weight_type).block_elements > 32 ? 768 : 544;
      const std::vector<std::byte> blocks = random_blocks(weight_type, 9, n, k);
      const std::vector<float> exact = weights_of(weight_type, blocks),
                               w = unrounded(type) ? exact : rounded(exact, type), x = common_values(1, rows * k),
                               bias = common_values(2, n), residual = common_values(3, rows * n);  // as in run()
      std::vector<double> expected, magnitude;
      for (int64_t i = 0; i < rows * n; ++i) {
        const float* const x_row = x.data() + i / n * k;
        const float* const w_row = w.data() + i % n * k;
        double sum = bias[static_cast<size_t>(i % n)], absolute = std::fabs(sum);
        sum += static_cast<double>(residual[static_cast<size_t>(i)]);
        absolute += std::fabs(static_cast<double>(residual[static_cast<size_t>(i)]));
        for (int64_t j = 0; j < k; ++j) {
          sum += static_cast<double>(x_row[j]) * w_row[j];
          absolute += std::fabs(static_cast<double>(x_row[j]) * w_row[j]);
        }
        expected.push_back(sum);
        magnitude.push_back(absolute);
      }
      const DeviceArray stored = store(weight_type, blocks, n, k);
      const Weight weight = {.parts = {{stored.data(), weight_type, n}, {}, {}}, .count = 1, .cols = k};
      expect_close(decode(run(weight, type, DType::kF32, x, rows), DType::kF32), expected, magnitude, DType::kF32,
                   str(name, " n=", n, ", ", rows, " rows"));
    }
  }
}

// docs/design.md, section 6, rule 1: a row's bits depend neither on how many rows ride along nor on its place.
TEST_P(BlocksProductTest, RowsAndPlacesChangeNoBit) {
  constexpr int64_t kMaxRows = 384;
  const DType type = DType::kBF16;
  const bool cuda = this->cuda();
  for (const WeightType weight_type : kQuantisedTypes) {
    const int64_t block = weight_type_info(weight_type).block_elements;
    // On CUDA also more columns than are multiplied with k in four runs.
    for (const int64_t n : cuda ? std::vector<int64_t>{50, 16424} : std::vector<int64_t>{50}) {
      const int64_t k = n == 50 ? (block > 32 ? 1280 : 1184) : (block > 32 ? 768 : 544);
      const DeviceArray stored = store(weight_type, random_blocks(weight_type, 4, n, k), n, k);
      const Weight weight = {.parts = {{stored.data(), weight_type, n}, {}, {}}, .count = 1, .cols = k};
      const std::vector<float> x = random_values(1, kMaxRows * k);
      // To f32, as a residual stream's product: what rounding would hide shows.
      const std::vector<std::byte> all = run(weight, type, DType::kF32, x, kMaxRows);
      const auto expect_same = [&](int64_t rows, int64_t first) {
        const std::vector<std::byte> got = run(weight, type, DType::kF32, x, rows, first);
        EXPECT_EQ(std::memcmp(got.data(), all.data() + first * n * 4, got.size()), 0)
            << weight_type_info(weight_type).name << " n=" << n << ", " << rows << " rows from " << first;
      };
      if (cuda) {
        for (const int64_t rows : {1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 65, 100, 128, 129, 192}) expect_same(rows, 0);
        for (const int64_t rows : {1, 7, 33, 100}) expect_same(rows, 211);
      } else {
        for (const int64_t rows : {1, 2, 3, 5, 8, 9, 64}) expect_same(rows, 0);
        expect_same(1, 211);
      }
      if (testing::kSanitized) return;
    }
  }
}

void BlocksProductTest::check_gated(const Weight& weight, DType type, int64_t rows, const std::string& what) {
  const int64_t n = weight.rows(), k = weight.cols;
  const auto bytes = [&](int64_t cols) { return static_cast<uint64_t>(rows * cols) * dtype_bytes(type); };
  const DeviceArray x = upload(random_values(1, rows * k), type), gate_up = output(bytes(n)), room = output(bytes(n)),
                    expected = output(bytes(n / 2)), out = output(bytes(n / 2));
  ProductParams params{};
  params.x = x.data();
  params.weight = weight;
  params.out = gate_up.data();
  params.type = params.out_type = type;
  params.rows = rows;
  params.n = n;
  params.k = k;
  params.path = ProductPath::kDecode;
  product(params, stream());
  params.out = room.data();
  for (const Activation activation : {Activation::kSilu, Activation::kGelu}) {
    silu_mul({.gate_up = gate_up.data(),
              .out = expected.data(),
              .type = type,
              .rows = rows,
              .cols = n / 2,
              .activation = activation},
             stream());
    params.activation = activation;
    gated_product(params, out.data(), stream());
    EXPECT_TRUE(download(out) == download(expected)) << what << " as " << dtype_name(type) << ", " << rows << " rows";
    download(room);  // its guards
  }
}

// Of a product that normalises its input and of one whose input is normalised before.
TEST_P(BlocksProductTest, NormalisesItsInput) {
  const bool cuda = this->cuda();
  const float eps = 1e-5f;
  for (const WeightType type : kQuantisedTypes) {
    for (const int64_t n : cuda ? std::vector<int64_t>{40, 16424} : std::vector<int64_t>{40}) {
      for (const int64_t k : n > 40 ? std::vector<int64_t>{512} : std::vector<int64_t>{256, 1280, 5120}) {
        const DeviceArray stored = store(type, random_blocks(type, 1, n, k), n, k);
        const Weight weight = {.parts = {{stored.data(), type, n}, {}, {}}, .count = 1, .cols = k};
        for (const DType compute : {DType::kBF16, DType::kF16}) {
          if (compute != DType::kBF16 && (n > 40 || k != 256)) continue;
          for (const auto& [rows, x_type] : {std::pair<int64_t, DType>{1, compute},
                                             {2, compute},
                                             {5, compute},
                                             {9, compute},
                                             {1, DType::kF32},
                                             {2, DType::kF32},
                                             {5, DType::kF32},
                                             {9, DType::kF32}}) {
            const uint64_t room_bytes = static_cast<uint64_t>(rows * k) * dtype_bytes(compute);
            const uint64_t out_bytes = static_cast<uint64_t>(rows * n) * dtype_bytes(compute);
            const DeviceArray x = upload(random_values(2, rows * k, 3.0f), x_type), room = output(room_bytes),
                              norm = upload(random_values(3, k), compute), bias = upload(random_values(4, n), compute),
                              expected = output(out_bytes), out = output(out_bytes), gated = output(out_bytes / 2),
                              gated_expected = output(out_bytes / 2);
            rms_norm({x.data(), norm.data(), room.data(), x_type, compute, rows, k, k, k, eps}, stream());
            ProductParams params{};
            params.x = room.data();
            params.weight = weight;
            params.bias = bias.data();
            params.out = expected.data();
            params.type = params.out_type = compute;
            params.rows = rows;
            params.n = n;
            params.k = k;
            params.path = ProductPath::kDecode;
            product(params, stream());
            ProductParams plain = params;
            plain.bias = nullptr;
            plain.out = out.data();
            gated_product(plain, gated_expected.data(), stream());
            const std::vector<std::byte> normed = download(gated_expected);
            params.x = plain.x = x.data();
            params.norm = plain.norm = {.weight = norm.data(), .x_type = x_type, .eps = eps, .room = room.data()};
            params.out = out.data();
            const std::string what =
                str(weight_type_info(type).name, " ", n, " x ", k, ", ", rows, " rows in ", dtype_name(x_type));
            product(params, stream());
            EXPECT_TRUE(download(out) == download(expected)) << what;
            gated_product(plain, gated.data(), stream());
            EXPECT_TRUE(download(gated) == normed) << what << ", gated";
          }
        }
      }
    }
    if (testing::kSanitized) return;
  }
}

TEST_P(BlocksProductTest, GatedProductIsProductThenActivation) {
  const bool cuda = this->cuda();
  for (const WeightType type : kQuantisedTypes) {
    // Whole tiles are one part. On CUDA also as many columns as are multiplied with k in one run.
    for (const int64_t ffn : cuda ? std::vector<int64_t>{48, 37, 8232, 8240} : std::vector<int64_t>{48, 37}) {
      const int64_t k = weight_type_info(type).block_elements * (ffn > 48 ? 1 : 3), n = 2 * ffn;
      const DeviceArray gate = store(type, random_blocks(type, 5, ffn, k), ffn, k),
                        up = store(type, random_blocks(type, 6, ffn, k), ffn, k),
                        both = store(type, random_blocks(type, 7, n, k), n, k);
      const Weight two = {.parts = {{gate.data(), type, ffn}, {up.data(), type, ffn}, {}}, .count = 2, .cols = k};
      const Weight one = {.parts = {{both.data(), type, n}, {}, {}}, .count = 1, .cols = k};
      for (const int64_t rows : cuda ? std::vector<int64_t>{1, 9, 33, 70, 150} : std::vector<int64_t>{1, 9}) {
        check_gated(ffn % 16 == 0 ? one : two, DType::kBF16, rows, str(weight_type_info(type).name, " ", ffn));
      }
      if (ffn == 37) check_gated(two, DType::kF16, 3, weight_type_info(type).name);
    }
  }
  // Of two types, and plain.
  const int64_t ffn = 21, k = 512;
  const DeviceArray gate = store(WeightType::kQ4K, random_blocks(WeightType::kQ4K, 5, ffn, k), ffn, k),
                    up = store(WeightType::kQ6K, random_blocks(WeightType::kQ6K, 6, ffn, k), ffn, k);
  check_gated(
      {.parts = {{gate.data(), WeightType::kQ4K, ffn}, {up.data(), WeightType::kQ6K, ffn}, {}}, .count = 2, .cols = k},
      DType::kBF16, 5, "Q4_K, Q6_K");
  if (cuda) return;  // there plain products need padding
  const DeviceArray plain = upload(random_values(8, 2 * ffn * k), DType::kBF16);
  check_gated(plain_weight(plain.data(), DType::kBF16, 2 * ffn, k), DType::kBF16, 5, "plain");
}

TEST_P(BlocksProductTest, RotatedProductIsProductThenRope) {
  constexpr int64_t kHeads = 4, kKvHeads = 2, kK = 512, kTableRows = 40;
  const DType type = DType::kBF16;
  const bool cuda = this->cuda();
  for (const auto& [head_dim, of_qk, of_v] : {std::tuple{64, WeightType::kQ4K, WeightType::kQ6K},
                                              {80, WeightType::kQ4K, WeightType::kQ6K},  // CUDA has no kernel for it
                                              {128, WeightType::kQ4K, WeightType::kQ6K},
                                              {128, WeightType::kIQ4XS, WeightType::kQ5K},
                                              {192, WeightType::kQ2K, WeightType::kQ3K}}) {
    const int64_t dim = head_dim;  // lambdas capture variables
    const WeightType qk_type = of_qk, v_type = of_v;
    const int64_t v_rows = kKvHeads * dim, qk_rows = kHeads * dim + v_rows, n = qk_rows + v_rows;
    const DeviceArray qk = store(qk_type, random_blocks(qk_type, 1, qk_rows, kK), qk_rows, kK),
                      v = store(v_type, random_blocks(v_type, 2, v_rows, kK), v_rows, kK);
    for (const int64_t rows : cuda ? std::vector<int64_t>{1, 9, 33, 70, 150} : std::vector<int64_t>{1, 9}) {
      for (const DType kv_type : {DType::kBF16, DType::kF16, DType::kF32}) {
        const bool normed = kv_type == DType::kF16;  // then x is a residual stream in f32
        std::vector<int32_t> at;
        for (int64_t row = 0; row < rows; ++row) at.push_back(static_cast<int32_t>(row * 7 % kTableRows));
        const uint64_t element = dtype_bytes(type), kv_bytes = dtype_bytes(kv_type);
        const DeviceArray x = upload(random_values(3, rows * kK), normed ? DType::kF32 : type),
                          norm = upload(random_values(6, kK), type),
                          room = output(static_cast<uint64_t>(rows * kK) * 2), bias = upload(random_values(4, n), type),
                          table = upload_raw(random_values(5, 2 * kTableRows * dim)), positions = upload_raw(at),
                          first = upload_raw(std::vector<int32_t>{2});
        const auto result = [&](bool at_once) {
          const DeviceArray out = output(static_cast<uint64_t>(rows * n) * element);
          const auto kv = static_cast<uint64_t>((rows + 2) * v_rows) * kv_bytes;
          const DeviceArray k_out = output(kv), v_out = output(kv);
          ProductParams params{};
          params.x = x.data();
          params.weight = {
              .parts = {{qk.data(), qk_type, qk_rows}, {v.data(), v_type, v_rows}, {}}, .count = 2, .cols = kK};
          params.bias = bias.data();
          params.out = out.data();
          params.type = params.out_type = type;
          params.rows = rows;
          params.n = n;
          params.k = kK;
          params.path = ProductPath::kDecode;
          if (normed) params.norm = {.weight = norm.data(), .x_type = DType::kF32, .eps = 1e-5f, .room = room.data()};
          RopeParams turn{};
          turn.q = out.data();
          turn.k = out.data() + static_cast<uint64_t>(kHeads * dim) * element;
          turn.v = out.data() + static_cast<uint64_t>(qk_rows) * element;
          turn.positions = positions.as<int32_t>();
          turn.cos_sin = table.as<float>();
          turn.q_table = normed ? kTableRows * dim : 0;
          turn.k_out = k_out.data();
          turn.v_out = v_out.data();
          turn.type = type;
          turn.k_type = turn.v_type = kv_type;
          turn.rows = rows;
          turn.heads = kHeads;
          turn.kv_heads = kKvHeads;
          turn.head_dim = dim;
          turn.qkv_stride = n;
          turn.table_rows = kTableRows;
          turn.out_row_stride = dim;
          turn.out_head_stride = (rows + 2) * dim;
          turn.out_first = first.as<int32_t>();
          if (at_once) {
            rotated_product(params, turn, stream());
          } else {
            product(params, stream());
            rope(turn, stream());
          }
          const std::vector<std::byte> all = download(out), k = download(k_out), values = download(v_out);
          std::vector<std::byte> seen;  // q, k and v
          for (int64_t row = 0; row < rows; ++row) {
            const auto begin = all.begin() + row * n * static_cast<int64_t>(element);
            seen.insert(seen.end(), begin, begin + kHeads * dim * static_cast<int64_t>(element));
          }
          seen.insert(seen.end(), k.begin(), k.end());
          seen.insert(seen.end(), values.begin(), values.end());
          return seen;
        };
        EXPECT_TRUE(result(true) == result(false))
            << weight_type_info(qk_type).name << " " << dim << ", " << rows << " rows to " << dtype_name(kv_type);
      }
    }
    if (testing::kSanitized) return;
  }
}

// The output may be the residual.
TEST_P(BlocksProductTest, ResidualInPlace) {
  constexpr int64_t kN = 48, kK = 512;
  const DType type = DType::kBF16;
  const DeviceArray stored = store(WeightType::kQ4K, random_blocks(WeightType::kQ4K, 1, kN, kK), kN, kK);
  const Weight weight = {.parts = {{stored.data(), WeightType::kQ4K, kN}, {}, {}}, .count = 1, .cols = kK};
  for (const int64_t rows : {1, 8, 70}) {
    const std::vector<float> x = random_values(1, rows * kK);
    for (const DType out_type : {type, DType::kF32}) {
      const std::vector<std::byte> expected = run(weight, type, out_type, x, rows);
      const DeviceArray x_array = upload(x, type), bias = upload(common_values(2, kN), type),
                        out = upload(common_values(3, rows * kN), out_type);
      product({.x = x_array.data(),
               .weight = weight,
               .bias = bias.data(),
               .residual = out.data(),
               .out = out.data(),
               .type = type,
               .out_type = out_type,
               .rows = rows,
               .n = kN,
               .k = kK,
               .path = ProductPath::kDecode},
              stream());
      EXPECT_TRUE(download(out) == expected) << rows << " rows to " << dtype_name(out_type);
    }
  }
}

}  // namespace
}  // namespace headrace
