#include "tests/kernels/attention/fixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/support/low_bit_rows.h"
#include "tests/support/sanitized.h"

namespace headrace {

using testing_support::kAllTypes;
using testing_support::low_bit_plane;
using testing_support::low_bit_values;
using testing_support::random_values;
using testing_support::rounded;

std::string AttentionCase::name() const {
  return str(heads, "/", kv_heads, " heads of ", head_dim, ", ", dtype_name(type), " ", dtype_name(k_type), " ",
             dtype_name(v_type), ", q * ", q_scale, ", window ", window, sinks ? ", sinks" : "");
}

float AttentionCase::sink(int64_t head) const {
  constexpr float kSinks[] = {1.5f, -40.0f, 0.25f, 7.0f, 11.0f};
  return kSinks[head % 5] * std::max(1.0f, q_scale);
}

std::vector<float> AttentionCase::all_sinks() const {
  std::vector<float> values;
  for (int64_t head = 0; head < heads; ++head) values.push_back(sink(head));
  return values;
}

float AttentionCase::scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }

AttentionShape AttentionCase::shape(int64_t queries, int64_t q_stride) const {
  return {queries, heads, kv_heads, head_dim, q_stride, type, k_type, v_type, scale(), window};
}

std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases;
  for (DType type : kAllTypes) {
    for (DType k_type : kAllTypes) {
      for (DType v_type : kAllTypes) cases.push_back({4, 2, 18, type, k_type, v_type});
    }
  }
  struct Heads {
    int64_t heads, kv_heads, head_dim;
  };
  constexpr Heads kShapes[] = {{9, 3, 64}, {7, 1, 80}, {4, 2, 96}, {8, 2, 128}, {3, 1, 256}, {2, 2, 16}, {4, 4, 32},
                               {5, 1, 2},  {70, 1, 8}, {6, 2, 46}, {1, 1, 48},  {6, 1, 112}, {3, 1, 512}};
  for (const Heads& h : kShapes) {
    for (DType type : {DType::kF32, DType::kBF16}) {
      cases.push_back({h.heads, h.kv_heads, h.head_dim, type, type, type});
    }
  }
  for (const int64_t head_dim : {64, 80, 128, 256, 512}) {  // rows of f16 by queries of bf16, on tensor cores
    cases.push_back({6, 2, head_dim, DType::kBF16, DType::kF16, DType::kF16});
  }
  // Sizes between 256 and 512, and between 128 and 256, with and without a multiple of 8 and of 4.
  cases.push_back({3, 1, 330});
  for (const int64_t head_dim : {200, 256, 264, 328, 512}) {
    cases.push_back({2, 1, head_dim, DType::kF16, DType::kF16, DType::kF16});
  }
  // As many query heads a KV head as Gemma 4 has.
  cases.push_back({16, 1, 512, DType::kBF16, DType::kBF16, DType::kBF16});
  cases.push_back({16, 2, 512, DType::kBF16, DType::kF16, DType::kF16});
  // Queries beyond what f16 holds, 65,504, and below.
  for (const float q_scale : {60.0f, 1e-7f, 2e4f}) {
    cases.push_back({9, 3, 64, DType::kBF16, DType::kF16, DType::kF16, q_scale});
    cases.push_back({3, 1, 512, DType::kBF16, DType::kF16, DType::kF16, q_scale});
  }
  // Scores of a thousand and more: anything but the true maximum overflows, or leaves nothing.
  for (DType type : kAllTypes) {
    cases.push_back({9, 3, 64, type, type, type, 60.0f});
    cases.push_back({3, 1, 512, type, type, type, 60.0f});
  }
  if (!testing::kSanitized) return cases;
  std::vector<AttentionCase> some;
  for (size_t i = 0; i < cases.size(); i += 4) some.push_back(cases[i]);
  return some;
}

std::vector<AttentionCase> prefix_cases() {
  constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;
  constexpr DType kInt8 = DType::kInt8, kInt4 = DType::kInt4;
  std::vector<AttentionCase> low_bit = {
      {4, 2, 18, kF32, kInt8, kInt8},         {9, 3, 64, kBF16, kInt8, kInt8},      {7, 1, 80, kF16, kInt8, kInt8},
      {4, 2, 96, kBF16, kInt8, kInt8},        {8, 2, 128, kBF16, kInt8, kInt8},     {3, 1, 256, kBF16, kInt8, kInt8},
      {6, 2, 64, kBF16, kInt8, kBF16},        {6, 2, 64, kF32, kF16, kInt8},        {4, 2, 128, kF16, kF16, kInt8},
      {5, 1, 32, kF32, kInt4, kInt4},         {9, 3, 64, kBF16, kInt4, kInt4},      {8, 2, 128, kBF16, kInt4, kInt4},
      {3, 1, 256, kF16, kInt4, kInt4},        {2, 1, 256, kF16, kInt8, kInt8},      {20, 1, 256, kBF16, kInt8, kInt8},
      {2, 1, 512, kBF16, kInt8, kInt8},       {2, 1, 512, kBF16, kInt4, kInt4},     {20, 1, 256, kBF16, kInt4, kInt4},
      {9, 3, 64, kBF16, kInt8, kInt8, 60.0f}, {9, 3, 64, kF32, kInt4, kInt4, 60.0f}};
  std::vector<AttentionCase> cases = attention_cases();
  for (size_t i = 0; i < low_bit.size(); i += testing::kSanitized ? 3 : 1) cases.push_back(low_bit[i]);
  return cases;
}

std::vector<AttentionCase> windowed_cases() {
  constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;
  constexpr DType kInt8 = DType::kInt8, kInt4 = DType::kInt4;
  struct Types {
    int64_t heads, kv_heads, head_dim;
    DType type, k_type, v_type;
  };
  const std::vector<Types> shapes = {
      {4, 2, 18, kF32, kF32, kF32},     {9, 3, 64, kBF16, kBF16, kBF16},  {4, 2, 128, kBF16, kF16, kF16},
      {3, 1, 256, kBF16, kBF16, kBF16}, {2, 1, 512, kF16, kF16, kF16},    {5, 1, 80, kF16, kF16, kF16},
      {2, 1, 40, kBF16, kBF16, kF32},   {9, 3, 64, kBF16, kInt8, kInt8},  {2, 1, 128, kBF16, kInt4, kInt4},
      {2, 1, 256, kBF16, kInt8, kInt8}, {2, 1, 256, kF16, kInt4, kInt4},  {4, 1, 64, kF32, kF32, kInt8},
      {2, 1, 32, kF32, kInt4, kInt4},   {2, 1, 128, kF16, kInt8, kInt8},  {2, 1, 200, kBF16, kF16, kF16},
      {2, 1, 512, kBF16, kInt8, kInt8}, {8, 1, 512, kBF16, kBF16, kBF16}, {2, 1, 320, kBF16, kF16, kF16},
      {7, 1, 128, kBF16, kBF16, kBF16}, {20, 1, 256, kBF16, kInt8, kInt8}};
  std::vector<AttentionCase> cases;
  constexpr int64_t kWindows[] = {20, 64, 192, 300, 320, 448, 4096, 1};
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Types& s = shapes[i];
    for (size_t j = 0; j < (testing::kSanitized ? 1 : 2); ++j) {  // every shape has one window that reaches the prefix
      const int64_t window = j == 0 ? kWindows[3 + i % 3] : kWindows[(i + 3 * j) % std::size(kWindows)];
      cases.push_back({s.heads, s.kv_heads, s.head_dim, s.type, s.k_type, s.v_type, 1.0f, window});
    }
  }
  return cases;
}

std::vector<AttentionCase> sink_cases() {
  constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;
  constexpr DType kInt8 = DType::kInt8, kInt4 = DType::kInt4;
  std::vector<AttentionCase> cases = {
      {4, 2, 18, kF32, kF32, kF32},       {16, 2, 64, kBF16, kBF16, kBF16},      {16, 2, 64, kBF16, kF16, kF16},
      {5, 1, 128, kF16, kF16, kF16},      {5, 1, 40, kBF16, kBF16, kF32},        {5, 1, 256, kBF16, kBF16, kBF16},
      {16, 2, 64, kBF16, kInt8, kInt8},   {5, 1, 64, kBF16, kInt4, kInt4},       {5, 1, 32, kF32, kInt8, kInt8},
      {5, 1, 64, kF32, kF32, kF32, 20.f}, {10, 2, 64, kBF16, kBF16, kBF16, 20.f}};
  for (size_t i = 0, count = cases.size(); i < count; i += 2) {
    cases.push_back(cases[i]);
    cases.back().window = i % 4 == 0 ? 128 : 20;
  }
  for (AttentionCase& c : cases) c.sinks = true;
  return cases;
}

namespace {
std::vector<float> stored(const std::vector<float>& values, DType type, int64_t head_dim) {
  if (!low_bit(type)) return rounded(values, type);
  return low_bit_values(low_bit_plane(values, type, head_dim), type, head_dim);
}
}  // namespace

AttentionContext::AttentionContext(const AttentionCase& attention_case, int64_t row_count, uint64_t seed)
    : c(attention_case),
      rows(row_count),
      k(stored(random_values(seed, rows * c.kv_heads * c.head_dim), c.k_type, c.head_dim)),
      v(stored(random_values(seed + 1, rows * c.kv_heads * c.head_dim), c.v_type, c.head_dim)) {}

std::vector<float> AttentionContext::by_head(const std::vector<float>& from, const AttentionCase& c, int64_t begin,
                                             int64_t count, int64_t stride) {
  std::vector<float> out(static_cast<size_t>(c.kv_heads * stride * c.head_dim), std::nanf(""));
  for (int64_t head = 0; head < c.kv_heads; ++head) {
    for (int64_t row = 0; row < count; ++row) {
      const float* source = from.data() + ((begin + row) * c.kv_heads + head) * c.head_dim;
      std::copy(source, source + c.head_dim, out.data() + (head * stride + row) * c.head_dim);
    }
  }
  return out;
}

std::string Poison::name() const {
  return str(one_element ? "an element of " : "", k && v ? "K and V" : k ? "K" : "V", value != value ? " NaN" : " inf");
}

void Poison::put(int64_t begin, int64_t end, AttentionContext* context) const {
  const int64_t dim = context->c.head_dim;
  for (int64_t i = begin * context->c.kv_heads * dim; i < end * context->c.kv_heads * dim; ++i) {
    if (one_element && i % dim != dim - 1) continue;
    if (k) context->k[static_cast<size_t>(i)] = value;
    if (v) context->v[static_cast<size_t>(i)] = value;
  }
}

std::vector<Poison> poisons() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  return {{true, true, kNan, false}, {true, false, kNan, false}, {false, true, kNan, false},
          {false, true, kNan, true}, {true, true, kInf, false},  {false, true, -kInf, true}};
}

namespace {
double root_mean_square(const float* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  return std::sqrt(sum / static_cast<double>(count));
}
}  // namespace

std::vector<int64_t> seen_rows(const AttentionCase& c, int64_t t) {
  std::vector<int64_t> rows(static_cast<size_t>(t + 1 - first_seen(t, c.window)));
  std::iota(rows.begin(), rows.end(), first_seen(t, c.window));
  return rows;
}

void attend(const AttentionContext& context, const float* q, const std::vector<int64_t>& rows, double weight_error,
            AttentionExpectation* out) {
  const AttentionCase& c = context.c;
  for (int64_t head = 0; head < c.heads; ++head) {
    const auto row_of = [&](const std::vector<float>& all, int64_t row) {
      return all.data() + (row * c.kv_heads + head / c.group()) * c.head_dim;
    };
    std::vector<double> score, size;  // size: what went into the score, for its rounding
    for (int64_t row : rows) {
      double sum = 0, absolute = 0;
      for (int64_t d = 0; d < c.head_dim; ++d) {
        const double term = static_cast<double>(q[head * c.head_dim + d]) * row_of(context.k, row)[d];
        sum += term;
        absolute += std::fabs(term);
      }
      score.push_back(sum * c.scale());
      size.push_back(absolute * c.scale());
    }
    const double sink = c.sinks ? static_cast<double>(c.sink(head)) : -1e300;
    const double top = std::max(sink, *std::max_element(score.begin(), score.end()));
    std::vector<double> weight;
    double total = std::exp(sink - top), slack = 0;
    for (double s : score) total += weight.emplace_back(std::exp(s - top));
    if (c.sinks) slack = (2 + std::fabs(sink)) * std::exp(sink - top) / total;
    std::vector<double> value(static_cast<size_t>(c.head_dim)), magnitude(value.size());
    const bool rotated = c.v_type == DType::kInt4;
    // A weight of f16 is a multiple of 2^-24 of the largest: half of that, in expect_close()'s unit.
    const bool half = c.k_type == DType::kF16 || (low_bit(c.k_type) && c.type == DType::kF16);
    const double lost = weight_error > 0 && half ? 0x1p-25 / 2e-6 / total : 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const float* const row = row_of(context.v, rows[i]);
      // An element of a row that is stored rotated has the rounding of the whole row.
      const double whole = rotated ? root_mean_square(row, c.head_dim) : 0;
      const double part = weight[i] / total, errors = part * (2 + size[i] + weight_error / 2e-6) + lost;
      for (size_t d = 0; d < value.size(); ++d) {
        value[d] += part * row[d];
        magnitude[d] += errors * (rotated ? whole : std::fabs(row[d]));
      }
      slack += part * (2 + size[i]);
    }
    for (size_t d = 0; d < value.size(); ++d) {
      out->values.push_back(value[d]);
      out->magnitude.push_back(magnitude[d] + slack * std::fabs(value[d]));
    }
  }
}

AttentionTest::Segments AttentionTest::segments(const AttentionContext& context, int64_t rows_each, int64_t spare) {
  Segments result;
  const auto plane = [&](const std::vector<float>& values, DType type) {
    return low_bit(type) ? upload(low_bit_plane(values, type, context.c.head_dim)) : upload(values, type);
  };
  result.list.resize(static_cast<size_t>(ceil_div(context.rows, rows_each)));
  std::vector<size_t> order(result.list.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  for (size_t place : order) {
    const int64_t begin = static_cast<int64_t>(place) * rows_each, count = std::min(rows_each, context.rows - begin);
    const AttentionCase& c = context.c;
    result.arrays.push_back(plane(AttentionContext::by_head(context.k, c, begin, count, count + spare), c.k_type));
    const void* k = result.arrays.back().data();
    result.arrays.push_back(plane(AttentionContext::by_head(context.v, c, begin, count, count + spare), c.v_type));
    result.list[place] = {k, result.arrays.back().data(), static_cast<int32_t>(begin), static_cast<int32_t>(count),
                          static_cast<int32_t>(count + spare)};
  }
  return result;
}

namespace {
double rounding_of(const AttentionCase& c) {
  if (!has_tensor_rows(c.type, c.k_type, c.v_type)) return 0;
  return c.k_type == DType::kBF16 ? 0x1p-8 : 0x1p-11;
}
}  // namespace

double AttentionTest::prefill_weight_error(const AttentionCase& c) const {
  return GetParam().device == DeviceChoice::kCuda || c.k_type == DType::kBF16 ? rounding_of(c) : 0;
}

double AttentionTest::prefix_weight_error(const AttentionCase& c) const {
  if (GetParam().device != DeviceChoice::kCuda || c.type == DType::kF32) return 0;
  if (c.k_type == DType::kInt4) return c.type == DType::kBF16 ? 0.1 : 0.01;  // of the rotated query, too
  AttentionCase exact = c;
  if (c.k_type == c.v_type && c.k_type == DType::kInt8) exact.k_type = exact.v_type = c.type;
  return rounding_of(exact);
}

}  // namespace headrace
