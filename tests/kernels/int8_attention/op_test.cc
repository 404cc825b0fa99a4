// Prefill's attention in 8 bits: the rows in 8 bits equal those of the definition by bits on every backend and
// instruction set, the output follows the definition in f64, and a query's bits depend on what it sees alone.
#include "kernels/int8_attention/op.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/int8_attention/layout.h"
#include "tests/support/kernel_test.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::encode;
using testing_support::KernelTest;
using testing_support::random_values;
using testing_support::rounded;

constexpr int64_t kTile = kPrefixTile;

struct Shape {
  int64_t heads, kv_heads, dim;
  DType type = DType::kF32, k_type = DType::kF32, v_type = DType::kF32;
  std::vector<float> sinks = {};  // [heads], or none
};

// One vector in 8 bits, as the definition says.
struct Quantised {
  std::vector<int> q;
  float scale = 0.0f;
};
Quantised quantise(std::vector<float> values) {
  float top = 0.0f;
  bool finite = true;
  for (const float value : values) {
    finite = finite && std::isfinite(value);
    top = std::max(top, std::fabs(value));
  }
  Quantised out{std::vector<int>(values.size(), 0), 0.0f};
  if (!finite) out.scale = std::numeric_limits<float>::quiet_NaN();
  if (!finite || top < 0x1p-120f) return out;
  out.scale = top / 127.0f;
  const float inverse = 127.0f / top;
  for (size_t i = 0; i < values.size(); ++i) out.q[i] = static_cast<int>(std::nearbyintf(values[i] * inverse));
  return out;
}
std::vector<float> rotate(std::vector<float> values) {
  const size_t dim = values.size(), block = static_cast<size_t>(head_rotation(static_cast<int64_t>(dim)));
  for (size_t apart = 1; apart < block; apart *= 2) {
    for (size_t i = 0; i < dim; ++i) {
      if ((i & apart) != 0) continue;
      const float a = values[i], b = values[i + apart];
      values[i] = a + b;
      values[i + apart] = a - b;
    }
  }
  return values;
}

// A layer's rows, in segments of 512 and of the rest, with room behind each; the values as they are stored.
struct Layer {
  Shape shape;
  int64_t rows;
  std::vector<float> k, v;  // [kv_heads, rows, dim]

  Layer(const Shape& s, int64_t count, uint64_t seed)
      : shape(s),
        rows(count),
        k(rounded(random_values(seed, s.kv_heads * count * s.dim), s.k_type)),
        v(rounded(random_values(seed + 1, s.kv_heads * count * s.dim), s.v_type)) {}

  std::vector<float> row(const std::vector<float>& from, int64_t head, int64_t position) const {
    const auto first = from.begin() + (head * rows + position) * shape.dim;
    return {first, first + shape.dim};
  }
  std::vector<float> centre(int64_t head) const {
    std::vector<float> sum(static_cast<size_t>(shape.dim), 0.0f);
    for (int64_t i = 0; i < kInt8CentreRows; ++i) {
      const std::vector<float> at = row(k, head, i);
      for (size_t d = 0; d < sum.size(); ++d) sum[d] += at[d];
    }
    for (float& value : sum) value *= 1.0f / kInt8CentreRows;
    return sum;
  }
  Quantised key(int64_t head, int64_t position) const {
    std::vector<float> at = row(k, head, position);
    const std::vector<float> c = centre(head);
    for (size_t d = 0; d < at.size(); ++d) at[d] -= c[d];
    Quantised key = quantise(rotate(at));
    key.scale = std::bit_cast<float>(std::bit_cast<uint32_t>(key.scale) & ~3u);
    return key;
  }
  Quantised channel(int64_t head, int64_t tile, int64_t d) const {  // of V
    std::vector<float> values;
    for (int64_t i = 0; i < kTile; ++i) values.push_back(row(v, head, tile * kTile + i)[static_cast<size_t>(d)]);
    return quantise(values);
  }
};

class Int8Attention : public KernelTest {
 protected:
  // The layer in device memory. Rows from `rows` on, and the room behind segments, are NaN.
  struct Loaded {
    std::vector<DeviceArray> planes;
    DeviceArray segments;
    int64_t count = 0;
  };
  Loaded load(const Layer& layer) {
    Loaded loaded;
    std::vector<KvSegment> segments;
    for (int64_t begin = 0; begin < layer.rows; begin += begin == 0 ? 512 : 1 << 20) {
      const int64_t rows = begin == 0 ? std::min<int64_t>(512, layer.rows) : layer.rows - begin, stride = rows + 7;
      KvSegment segment{.k = nullptr,
                        .v = nullptr,
                        .position = static_cast<int32_t>(begin),
                        .rows = static_cast<int32_t>(rows),
                        .stride_rows = static_cast<int32_t>(stride)};
      segment.k = plane(layer, layer.k, layer.shape.k_type, begin, rows, stride, &loaded);
      segment.v = plane(layer, layer.v, layer.shape.v_type, begin, rows, stride, &loaded);
      segments.push_back(segment);
    }
    loaded.count = static_cast<int64_t>(segments.size());
    loaded.segments = upload_raw(segments);
    return loaded;
  }
  const void* plane(const Layer& layer, const std::vector<float>& from, DType type, int64_t begin, int64_t rows,
                    int64_t stride, Loaded* loaded) {
    const int64_t dim = layer.shape.dim;
    std::vector<float> values(static_cast<size_t>(layer.shape.kv_heads * stride * dim),
                              std::numeric_limits<float>::quiet_NaN());
    for (int64_t head = 0; head < layer.shape.kv_heads; ++head) {
      std::copy_n(from.begin() + (head * layer.rows + begin) * dim, rows * dim, values.begin() + head * stride * dim);
    }
    loaded->planes.push_back(upload(values, type));
    return loaded->planes.back().data();
  }

  DeviceArray converted(const Layer& layer, const Loaded& loaded, const std::vector<int64_t>& cuts = {}) {
    const Shape& s = layer.shape;
    const int64_t whole = layer.rows / kTile * kTile;
    centre_ = output(static_cast<uint64_t>(s.kv_heads * s.dim) * sizeof(float));
    const DeviceArray& centre = *centre_;
    DeviceArray out = output(int8_kv_bytes(stream().backend(), whole, s.kv_heads, s.dim));
    int8_centre({.segments = loaded.segments.as<KvSegment>(),
                 .segment_count = loaded.count,
                 .k_type = s.k_type,
                 .kv_heads = s.kv_heads,
                 .head_dim = s.dim,
                 .centre = centre.as<float>()},
                stream());
    std::vector<int64_t> ends = cuts;
    ends.push_back(whole);
    int64_t first = 0;
    for (const int64_t end : ends) {
      int8_kv({.segments = loaded.segments.as<KvSegment>(),
               .segment_count = loaded.count,
               .k_type = s.k_type,
               .v_type = s.v_type,
               .kv_heads = s.kv_heads,
               .head_dim = s.dim,
               .centre = centre.as<float>(),
               .first = first,
               .end = end,
               .out = {.data = out.data(), .rows = whole}},
              stream());
      first = end;
    }
    download(centre);  // waits
    return out;
  }

  // Queries [from, to) of `q` [queries, heads, dim], the first of which is at first_position. Bytes of the output.
  std::vector<std::byte> attend(const Layer& layer, const Loaded& loaded, const DeviceArray& kv,
                                const std::vector<float>& q, int64_t first_position, int64_t from, int64_t to) {
    const Shape& s = layer.shape;
    const int64_t width = s.heads * s.dim, stride = width + 2 * s.kv_heads * s.dim;
    std::vector<float> rows;
    for (int64_t i = from; i < to; ++i) {
      rows.insert(rows.end(), q.begin() + i * width, q.begin() + (i + 1) * width);
      rows.resize(rows.size() + static_cast<size_t>(stride - width), 1e30f);
    }
    const DeviceArray queries = upload(rows, s.type);
    const AttentionShape shape{.queries = to - from,
                               .heads = s.heads,
                               .kv_heads = s.kv_heads,
                               .head_dim = s.dim,
                               .q_stride = stride,
                               .type = s.type,
                               .k_type = s.k_type,
                               .v_type = s.v_type,
                               .scale = 1.0f / std::sqrt(static_cast<float>(s.dim))};
    const DeviceArray workspace =
        output(std::max<uint64_t>(64, int8_attention_workspace_bytes(stream().backend(), shape)));
    const DeviceArray out = output(static_cast<uint64_t>((to - from) * width) * dtype_bytes(s.type));
    const DeviceArray sinks = upload(s.sinks.empty() ? std::vector<float>(1) : s.sinks, DType::kF32);
    int8_attention({.shape = shape,
                    .q = queries.data(),
                    .kv = {.data = kv.data(), .rows = layer.rows / kTile * kTile},
                    .centre = centre_->as<float>(),
                    .segments = loaded.segments.as<KvSegment>(),
                    .out = out.data(),
                    .workspace = workspace.data(),
                    .segment_count = loaded.count,
                    .first_position = first_position + from,
                    .sinks = s.sinks.empty() ? nullptr : sinks.as<float>()},
                   stream());
    download(workspace);
    return download(out);
  }

  void TearDown() override {
    centre_.reset();
    KernelTest::TearDown();
  }
  std::optional<DeviceArray> centre_;  // of the last conversion
};

// ---- The definition -------------------------------------------------------------------------------------------------

// What a query of one KV head sees, in the form that it is computed in.
class Seen {
 public:
  // `plain`: nothing is in 8 bits.
  Seen(const Layer& layer, int64_t kv_head, int64_t rows, bool plain)
      : layer_(layer), kv_head_(kv_head), plain_(plain), centre_(layer.centre(kv_head)) {
    for (int64_t i = 0; i < rows && !plain; ++i) keys_.push_back(layer.key(kv_head, i));
    for (int64_t tile = 0; tile < rows / kTile && !plain; ++tile) {
      for (int64_t d = 0; d < layer.shape.dim; ++d) channels_.push_back(layer.channel(kv_head, tile, d));
    }
  }

  struct Row {
    std::vector<double> out, magnitude;
  };
  Row query(const std::vector<float>& q, int64_t position, double sink) const {
    const Quantised in_8_bits = quantise(rotate(q));
    const int64_t own = plain_ ? 0 : position / kTile * kTile, dim = layer_.shape.dim;
    double l = 0;
    Row row{std::vector<double>(q.size(), 0.0), std::vector<double>(q.size(), 0.0)};
    double largest = sink;
    for (int64_t i = 0; i <= position; ++i) largest = std::max(largest, score(q, in_8_bits, i, i >= own));
    for (int64_t begin = 0; begin <= position; begin += kTile) {
      const int64_t end = std::min(begin + kTile, position + 1);
      double top = -1e300;
      for (int64_t i = begin; i < end; ++i) top = std::max(top, score(q, in_8_bits, i, begin >= own));
      for (int64_t i = begin; i < end; ++i) {
        const double exact = std::exp(score(q, in_8_bits, i, begin >= own) - top), to = std::exp(top - largest);
        const double weight = begin >= own ? exact : std::nearbyint(255 * exact) / 255;
        l += weight * to;
        for (int64_t d = 0; d < dim; ++d) {
          const double value = weight * (begin >= own ? static_cast<double>(layer_.v[index(i, d)])
                                                      : of_channel(begin / kTile, d, i - begin));
          row.out[static_cast<size_t>(d)] += value * to;
          row.magnitude[static_cast<size_t>(d)] += std::fabs(value) * to;
        }
      }
    }
    l += std::exp(sink - largest);
    for (int64_t d = 0; d < dim; ++d) {
      row.out[static_cast<size_t>(d)] /= l;
      row.magnitude[static_cast<size_t>(d)] /= l;
    }
    return row;
  }

 private:
  size_t index(int64_t position, int64_t d) const {
    return static_cast<size_t>((kv_head_ * layer_.rows + position) * layer_.shape.dim + d);
  }
  double of_channel(int64_t tile, int64_t d, int64_t row) const {
    const Quantised& channel = channels_[static_cast<size_t>(tile * layer_.shape.dim + d)];
    return channel.q[static_cast<size_t>(row)] * static_cast<double>(channel.scale);
  }
  double score(const std::vector<float>& q, const Quantised& in_8_bits, int64_t position, bool exact) const {
    const double scale = static_cast<double>(1.0f / std::sqrt(static_cast<float>(q.size())));
    double sum = 0;
    if (exact) {
      for (size_t d = 0; d < q.size(); ++d) {
        sum += static_cast<double>(q[d]) * static_cast<double>(layer_.k[index(position, static_cast<int64_t>(d))]);
      }
      return sum * scale;
    }
    const Quantised& key = keys_[static_cast<size_t>(position)];
    int64_t whole = 0;
    for (size_t d = 0; d < q.size(); ++d) whole += in_8_bits.q[d] * key.q[d];
    for (size_t d = 0; d < q.size(); ++d) sum += static_cast<double>(q[d]) * static_cast<double>(centre_[d]);
    return scale * (sum + static_cast<double>(whole) * static_cast<double>(in_8_bits.scale) *
                              static_cast<double>(key.scale) / static_cast<double>(head_rotation(layer_.shape.dim)));
  }

  const Layer& layer_;
  const int64_t kv_head_;
  const bool plain_;
  const std::vector<float> centre_;
  std::vector<Quantised> keys_, channels_;
};

struct Errors {
  double largest = 0, mean = 0;  // as shares of what a head's weighted values amount to, on average over its elements
};
Errors errors_of(const Layer& layer, const std::vector<float>& q, const std::vector<float>& out, int64_t first,
                 int64_t queries, bool plain) {
  const Shape& s = layer.shape;
  Errors errors;
  int64_t count = 0;
  const double rounding = s.type == DType::kBF16 ? 1.0 / 256 : s.type == DType::kF16 ? 1.0 / 2048 : 0;  // of the output
  for (int64_t kv_head = 0; kv_head < s.kv_heads; ++kv_head) {
    const Seen seen(layer, kv_head, layer.rows / kTile * kTile, plain);
    for (int64_t i = 0; i < queries; i += 5) {
      const int64_t head = kv_head * (s.heads / s.kv_heads) + i % (s.heads / s.kv_heads);
      const auto at = q.begin() + (i * s.heads + head) * s.dim;
      const double sink = s.sinks.empty() ? -1e300 : static_cast<double>(s.sinks[static_cast<size_t>(head)]);
      const Seen::Row row = seen.query({at, at + s.dim}, first + i, sink);
      const double size =
          std::accumulate(row.magnitude.begin(), row.magnitude.end(), 0.0) / static_cast<double>(row.magnitude.size());
      for (int64_t d = 0; d < s.dim; ++d) {
        const double got = static_cast<double>(out[static_cast<size_t>((i * s.heads + head) * s.dim + d)]);
        const double expected = row.out[static_cast<size_t>(d)];
        const double error = std::max(0.0, std::fabs(got - expected) - rounding * std::fabs(expected)) / size;
        errors.largest = std::max(errors.largest, error);
        errors.mean += error;
        ++count;
      }
    }
  }
  errors.mean /= static_cast<double>(count);
  return errors;
}

const Shape kShapes[] = {{4, 2, 64, DType::kBF16, DType::kBF16, DType::kBF16},
                         {8, 1, 128, DType::kBF16, DType::kBF16, DType::kBF16},
                         {3, 1, 64, DType::kF16, DType::kF16, DType::kF16},
                         {2, 1, 64, DType::kBF16, DType::kF16, DType::kF16},
                         {7, 1, 80},
                         {2, 2, 16},
                         {2, 1, 128, DType::kF32, DType::kF32, DType::kF16},
                         {2, 1, 96, DType::kBF16, DType::kF32, DType::kBF16},
                         {2, 1, 256, DType::kBF16, DType::kBF16, DType::kBF16}};

std::vector<float> queries_of(const Shape& s, int64_t count) {
  return rounded(random_values(11, count * s.heads * s.dim), s.type);
}

TEST_P(Int8Attention, FollowsTheDefinition) {
  for (const Shape& s : kShapes) {
    const int64_t first = 515, queries = 140;  // the end of a tile of 64 is no query's, nor is the beginning
    const Layer layer(s, first + queries, 5);
    const Loaded loaded = load(layer);
    const std::vector<float> q = queries_of(s, queries);
    const DeviceArray kv = converted(layer, loaded);
    const std::vector<float> out = testing_support::decode(attend(layer, loaded, kv, q, first, 0, queries), s.type);
    const Errors defined = errors_of(layer, q, out, first, queries, false);
    const Errors plain = errors_of(layer, q, out, first, queries, true);
    const std::string what =
        str(s.heads, " heads of ", s.dim, ", ", dtype_name(s.type), " with ", dtype_name(s.k_type));
    EXPECT_LT(defined.largest, 0.02) << what;  // a weight's rounding may turn
    EXPECT_LT(defined.mean, 0.0015) << what;
    EXPECT_LT(plain.mean, 0.05) << what;
    EXPECT_GT(plain.mean, defined.mean) << what;
  }
}

TEST_P(Int8Attention, ASinkTakesItsPart) {
  for (Shape s : {kShapes[0], kShapes[1], kShapes[4], kShapes[8]}) {
    constexpr float kSinks[] = {1.5f, -40.0f, 0.25f, 7.0f};
    for (int64_t head = 0; head < s.heads; ++head) s.sinks.push_back(kSinks[head % 4]);
    const int64_t first = 515, queries = 140;
    const Layer layer(s, first + queries, 5);
    const Loaded loaded = load(layer);
    const std::vector<float> q = queries_of(s, queries);
    const DeviceArray kv = converted(layer, loaded);
    const std::vector<float> out = testing_support::decode(attend(layer, loaded, kv, q, first, 0, queries), s.type);
    const Errors errors = errors_of(layer, q, out, first, queries, false);
    EXPECT_LT(errors.largest, 0.02) << "head_dim " << s.dim;
    EXPECT_LT(errors.mean, 0.0015) << "head_dim " << s.dim;
  }
}

// Whatever else is in the call, and however the rows were converted.
TEST_P(Int8Attention, AQuerysBitsDependOnWhatItSeesAlone) {
  for (const Shape& s : {kShapes[0], kShapes[1], kShapes[4], kShapes[8]}) {
    const int64_t first = 530, queries = 260;
    const Layer layer(s, first + queries, 7);
    const Loaded loaded = load(layer);
    const std::vector<float> q = queries_of(s, queries);
    const DeviceArray kv = converted(layer, loaded), again = converted(layer, loaded, {128, 640});
    const std::vector<std::byte> whole = attend(layer, loaded, kv, q, first, 0, queries);
    const size_t row = static_cast<size_t>(s.heads * s.dim) * dtype_bytes(s.type);
    for (const auto& [from, to] :
         {std::pair<int64_t, int64_t>{0, 1}, {1, 3}, {45, 46}, {46, 47}, {100, 260}, {7, 200}}) {
      const std::vector<std::byte> part = attend(layer, loaded, again, q, first, from, to);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<ptrdiff_t>(row) * from))
          << "queries " << from << " to " << to << ", head_dim " << s.dim;
    }
    // A layer that ends sooner: rows behind a query are NaN.
    Layer shorter = layer;
    for (int64_t head = 0; head < s.kv_heads; ++head) {
      std::fill_n(shorter.k.begin() + (head * layer.rows + 600) * s.dim, (layer.rows - 600) * s.dim,
                  std::numeric_limits<float>::quiet_NaN());
      std::fill_n(shorter.v.begin() + (head * layer.rows + 600) * s.dim, (layer.rows - 600) * s.dim,
                  std::numeric_limits<float>::quiet_NaN());
    }
    const Loaded nan = load(shorter);
    const DeviceArray nan_kv = converted(shorter, nan);
    const std::vector<std::byte> seen = attend(shorter, nan, nan_kv, q, first, 0, 70);
    EXPECT_TRUE(std::equal(seen.begin(), seen.end(), whole.begin())) << "head_dim " << s.dim;
    // Those that see them are NaN.
    const std::vector<float> after = testing_support::decode(attend(shorter, nan, nan_kv, q, first, 70, 260), s.type);
    EXPECT_TRUE(std::all_of(after.begin(), after.end(), [](float value) { return std::isnan(value); }))
        << "head_dim " << s.dim;
  }
}

// A score that is far above those of the tiles before it, and one of the own tile that is above all.
TEST_P(Int8Attention, LargeScores) {
  const Shape s = kShapes[0];
  const int64_t first = 700, queries = 130;
  Layer layer(s, first + queries, 9);
  std::vector<float> q = queries_of(s, queries);
  for (const int64_t position : {130, 450, 690, 810}) {
    for (int64_t head = 0; head < s.kv_heads; ++head) {
      for (int64_t d = 0; d < s.dim; ++d) {
        layer.k[static_cast<size_t>((head * layer.rows + position) * s.dim + d)] *= static_cast<float>(position);
      }
    }
  }
  layer.k = rounded(layer.k, s.k_type);
  const Loaded loaded = load(layer);
  const DeviceArray kv = converted(layer, loaded);
  const std::vector<float> out = testing_support::decode(attend(layer, loaded, kv, q, first, 0, queries), s.type);
  EXPECT_LT(errors_of(layer, q, out, first, queries, false).mean, 0.01);
}

TEST_P(Int8Attention, RowsAreThoseOfTheDefinition) {
  for (const Shape& s : {Shape{2, 2, 64, DType::kBF16, DType::kBF16, DType::kBF16}, Shape{1, 1, 128},
                         Shape{3, 1, 80, DType::kF16, DType::kF16, DType::kF16}, Shape{2, 1, 16},
                         Shape{1, 1, 256, DType::kBF16, DType::kF32, DType::kF16}, Shape{1, 1, 96}}) {
    Layer layer(s, 700, 3);
    std::fill_n(layer.k.begin() + 600 * s.dim, s.dim, 0.0f);  // after the mean is taken it is none of zeros
    layer.v[static_cast<size_t>(520 * s.dim)] = std::numeric_limits<float>::infinity();
    const Loaded loaded = load(layer);
    const std::vector<std::byte> bytes = download(converted(layer, loaded, {64, 512}));
    const bool cpu = stream().backend() == Backend::kCpu;
    const int64_t dim = cpu ? kernels::kv8_dim(s.dim, kernels::cpu::kKv8Multiple) : kernels::cuda::kv8_instance(s.dim);
    const int64_t block_bytes = cpu ? kernels::cpu::kv8_block_bytes(dim) : kernels::cuda::kv8_block_bytes(dim);
    const auto number = [&](int64_t at) {
      float value;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      return value;
    };
    const auto same = [](float a, float b) { return std::isnan(a) ? std::isnan(b) : a == b; };
    int64_t wrong = 0;
    for (int64_t tile = 0; tile < layer.rows / kTile; ++tile) {
      for (int64_t head = 0; head < s.kv_heads; ++head) {
        const int64_t block = (tile * s.kv_heads + head) * block_bytes;
        for (int64_t r = 0; r < kTile; ++r) {
          const Quantised key = layer.key(head, tile * kTile + r);
          if (cpu) {
            wrong += !same(key.scale, number(block + kernels::cpu::kv8_k_scales(dim) + r * 4));
          } else {
            const int64_t at = block + kernels::cuda::kv8_k_scales(dim) + r * 8;
            wrong += !same(key.scale, number(at)) + !same(-kernels::cuda::kKv8SumsStart * key.scale, number(at + 4));
          }
          for (int64_t d = 0; d < s.dim; ++d) {
            const int64_t in = r % 16, e = d % 32;
            const int64_t at = cpu ? (d / 4 * kTile + r) * 4 + d % 4
                                   : (r / 16 * (dim / 32) + d / 32) * 512 + (in % 8 * 4 + e % 16 / 4) * 16 +
                                         in / 8 * 8 + e / 16 * 4 + e % 4;
            wrong += static_cast<int8_t>(bytes[static_cast<size_t>(block + at)]) != key.q[static_cast<size_t>(d)];
          }
        }
        for (int64_t d = 0; d < s.dim; ++d) {
          const Quantised channel = layer.channel(head, tile, d);
          wrong +=
              !same(channel.scale,
                    number(block + (cpu ? kernels::cpu::kv8_v_scales(dim) : kernels::cuda::kv8_v_scales(dim)) + d * 4));
          for (int64_t r = 0; r < kTile; ++r) {
            const int64_t in = r % 32, j = in / 8;
            const int64_t at = cpu ? kernels::cpu::kv8_v(dim) + (r / 4 * dim + d) * 4 + r % 4
                                   : kernels::cuda::kv8_v(dim) + (d / 16 * 2 + r / 32) * 512 +
                                         (d % 8 * 4 + in % 8 / 2) * 16 + d % 16 / 8 * 8 + j * 2 + in % 2;
            wrong += static_cast<int8_t>(bytes[static_cast<size_t>(block + at)]) != channel.q[static_cast<size_t>(r)];
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0) << "head_dim " << s.dim;
  }
}

INSTANTIATE_KERNEL_TEST(Int8Attention);

}  // namespace
}  // namespace headrace
