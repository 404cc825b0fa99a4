// What is before and behind the recurrence: convolution, norms, gates, and the gated norm of the output.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/recurrence/fixture.h"

namespace headrace {
namespace {

using testing_support::ascending;
using testing_support::at;
using testing_support::chain;
using testing_support::chosen_rows;
using testing_support::DeltaTest;
using testing_support::DeviceArray;
using testing_support::expect_near;
using testing_support::expect_same_bits;
using testing_support::kAllTypes;
using testing_support::kDeltaShapes;

using testing_support::name_of;
using testing_support::random_tree;
using testing_support::random_values;
using testing_support::rounded;
using testing_support::Tree;

double silu(double x) { return x / (1 + std::exp(-x)); }

class DeltaInputsTest : public DeltaTest {
 protected:
  struct Case {
    DeltaShape shape;
    DType type;
    std::vector<float> conv, weight, decay, bias;
  };
  Case random_case(uint64_t seed, const DeltaShape& shape, DType type) {
    Case c = {shape,
              type,
              rounded(random_values(seed, 3 * shape.channels()), type),
              random_values(seed + 1, 4 * shape.channels(), 0.5f),
              random_values(seed + 2, shape.v_heads),
              random_values(seed + 3, shape.v_heads, 4.0f)};
    for (float& decay : c.decay) decay = -std::exp(decay * 0.2f);
    return c;
  }
  std::vector<float> random_in(uint64_t seed, const Case& c, int64_t rows) {
    return rounded(random_values(seed, rows * stride_of(c), 3.0f), c.type);
  }
  // Columns behind those of `in`: rows are aligned to four elements, or not.
  static int64_t stride_of(const Case& c) { return c.shape.in_width() + (c.shape.tiled ? 4 : 3); }

  struct Inputs {
    std::vector<float> q, k, v, beta, g, m;
    void append(const Inputs& from) {
      const auto add = [](std::vector<float>& to, const std::vector<float>& part) {
        to.insert(to.end(), part.begin(), part.end());
      };
      add(q, from.q), add(v, from.v), add(beta, from.beta);
      k = from.k, g = from.g, m = from.m;  // pass rows
    }
    Inputs of(const DeltaShape& shape, const std::vector<int32_t>& rows) const {
      return {chosen_rows(q, shape.k_width(), rows), chosen_rows(k, shape.k_width(), rows),
              chosen_rows(v, shape.v_width(), rows), chosen_rows(beta, shape.v_heads, rows),
              chosen_rows(g, shape.v_heads, rows),   chosen_rows(m, shape.channels(), rows)};
    }
  };
  // Without a tree: as prefill.
  Inputs inputs(const Case& c, const std::vector<float>& in, const Tree* tree, const std::vector<int64_t>& calls) {
    const DeltaShape& shape = c.shape;
    const int64_t rows = static_cast<int64_t>(in.size()) / stride_of(c);
    const auto room = [&](int64_t width) { return output(at(rows * width) * sizeof(float)); };
    const DeviceArray conv = upload(c.conv, c.type), weight = upload(c.weight, DType::kF32),
                      decay = upload(c.decay, DType::kF32), bias = upload(c.bias, DType::kF32);
    const DeviceArray k = room(shape.k_width()), g = room(shape.v_heads),
                      m = output(at(rows * shape.channels()) * dtype_bytes(c.type));
    Inputs all;
    int64_t first = 0;
    for (const int64_t count : calls) {
      const auto own_room = [&](int64_t width) { return output(at(count * width) * sizeof(float)); };
      const DeviceArray own = upload(chosen_rows(in, stride_of(c), ascending(first, count)), c.type);
      const DeviceArray q = own_room(shape.k_width()), v = own_room(shape.v_width()), beta = own_room(shape.v_heads);
      const Places where = places(tree != nullptr ? *tree : chain(rows), first, count);
      DeltaInputsParams params{};
      params.shape = shape;
      params.in = own.data();
      params.conv = conv.data();
      params.conv_weight = weight.as<float>();
      params.decay = decay.as<float>(), params.dt_bias = bias.as<float>();
      if (tree != nullptr) params.path = where.view();
      params.stored = {m.data(), k.as<float>(), nullptr, g.as<float>()};
      params.q = q.as<float>(), params.v = v.as<float>(), params.beta = beta.as<float>();
      params.type = c.type;
      params.rows = count, params.in_stride = stride_of(c), params.pass_rows = rows;
      delta_inputs(params, stream());
      first += count;
      all.append({download(q, DType::kF32), download(k, DType::kF32), download(v, DType::kF32),
                  download(beta, DType::kF32), download(g, DType::kF32), download(m, c.type)});
    }
    return all;
  }
  void expect_same(const Inputs& actual, const Inputs& expected, const std::string& what) {
    expect_same_bits(actual.q, expected.q, what + ", q");
    expect_same_bits(actual.k, expected.k, what + ", k");
    expect_same_bits(actual.v, expected.v, what + ", v");
    expect_same_bits(actual.beta, expected.beta, what + ", beta");
    expect_same_bits(actual.g, expected.g, what + ", g");
    expect_same_bits(actual.m, expected.m, what + ", m");
  }

  // c of the token at the end of `path`, in double.
  std::vector<double> plain_convolution(const Case& c, const std::vector<float>& in, const std::vector<int32_t>& path) {
    const int64_t channels = c.shape.channels(), length = static_cast<int64_t>(path.size());
    std::vector<double> out(at(channels));
    for (int64_t channel = 0; channel < channels; ++channel) {
      double sum = 0;
      for (int64_t u = 0; u < 4; ++u) {
        const int64_t j = length - 4 + u;
        const float m =
            j >= 0 ? in[at(path[at(j)] * stride_of(c) + channel)] : c.conv[at((3 + j) * channels + channel)];
        sum += double(c.weight[at(channel * 4 + u)]) * m;
      }
      out[at(channel)] = silu(sum);
    }
    return out;
  }
  void expect_plain(const Case& c, const std::vector<float>& in, const std::vector<int32_t>& path, const Inputs& row,
                    const std::string& what) {
    const DeltaShape& shape = c.shape;
    std::vector<double> values = plain_convolution(c, in, path);
    const auto normalise = [&](int64_t first, double scale) {
      for (int64_t head = 0; head < shape.k_heads; ++head) {
        double* const x = &values[at(first + head * shape.k_dim)];
        double squares = 1e-6;
        for (int64_t i = 0; i < shape.k_dim; ++i) squares += x[i] * x[i];
        for (int64_t i = 0; i < shape.k_dim; ++i) x[i] *= scale / std::sqrt(squares);
      }
    };
    normalise(0, 1 / std::sqrt(double(shape.k_dim)));
    normalise(shape.k_width(), 1);
    const auto part = [&](int64_t first, int64_t width) {
      return std::vector<double>(values.begin() + first, values.begin() + first + width);
    };
    expect_near(row.q, part(0, shape.k_width()), 1e-5, 0.1, what + ", q");
    expect_near(row.k, part(shape.k_width(), shape.k_width()), 1e-5, 0.1, what + ", k");
    expect_near(row.v, part(2 * shape.k_width(), shape.v_width()), 1e-5, 1, what + ", v");
    std::vector<double> beta, g;
    const float* const b = &in[at(path.back() * stride_of(c) + shape.channels() + shape.v_width())];
    for (int64_t head = 0; head < shape.v_heads; ++head) {
      const double a = double(b[shape.v_heads + head]) + c.bias[at(head)];
      beta.push_back(1 / (1 + std::exp(-double(b[head]))));
      g.push_back(c.decay[at(head)] * (a > 20 ? a : std::log1p(std::exp(a))));
    }
    expect_near(row.beta, beta, 1e-6, 0, what + ", beta");
    expect_near(row.g, g, 1e-6, 1e-6, what + ", g");
    const float* const own = &in[at(path.back() * stride_of(c))];
    expect_same_bits(row.m, {own, own + shape.channels()}, what + ", m");
  }
};
INSTANTIATE_KERNEL_TEST(DeltaInputsTest);

TEST_P(DeltaInputsTest, EqualPlainLoopsInPrefillAndInTrees) {
  uint64_t seed = 1;
  for (const DeltaShape& shape : kDeltaShapes) {
    for (const DType type : kAllTypes) {
      const int64_t rows = 9;
      const Case c = random_case(seed += 10, shape, type);
      const std::vector<float> in = random_in(++seed, c, rows);
      const Inputs prefilled = inputs(c, in, nullptr, {rows});
      const Tree line = chain(rows), tree = random_tree(++seed, rows);
      expect_same(inputs(c, in, &line, {rows}), prefilled, name_of(shape));
      const Inputs walked = inputs(c, in, &tree, {rows});
      for (int32_t row = 0; row < rows; ++row) {
        const std::string what = str(name_of(shape), ", ", dtype_name(type), ", row ", row);
        expect_plain(c, in, line.paths[at(row)], prefilled.of(shape, {row}), what + " of prefill");
        expect_plain(c, in, tree.paths[at(row)], walked.of(shape, {row}), what + " of a tree");
      }
    }
  }
}

TEST_P(DeltaInputsTest, ARowsBitsAreThoseOfItsPathAlone) {
  const DeltaShape shape = kDeltaShapes[6];
  const Case c = random_case(1, shape, DType::kBF16);
  const std::vector<float> in = random_in(2, c, 12);
  const Tree tree = random_tree(3, 12);
  const Inputs once = inputs(c, in, &tree, {12});
  expect_same(inputs(c, in, &tree, {4, 1, 7}), once, "calls");  // m of earlier calls is in the pass rows
  for (int32_t row = 0; row < 12; ++row) {
    const std::vector<int32_t>& path = tree.paths[at(row)];
    const auto length = static_cast<int32_t>(path.size());
    const Inputs alone = inputs(c, chosen_rows(in, stride_of(c), path), nullptr, {length});
    expect_same(once.of(shape, {row}), alone.of(shape, {length - 1}), str("row ", row));
  }
}

TEST_P(DeltaInputsTest, TheOutputEqualsPlainLoops) {
  uint64_t seed = 1;
  const int64_t rows = 5;
  const float eps = 1e-6f;
  for (const DeltaShape& shape : kDeltaShapes) {
    const int64_t width = shape.v_width(), stride = width + 11;
    for (const DType type : kAllTypes) {
      const std::vector<float> o = random_values(++seed, rows * width), weight = random_values(++seed, shape.v_dim);
      const std::vector<float> z = rounded(random_values(++seed, rows * stride, 2.0f), type);
      const DeviceArray device_o = upload(o, DType::kF32), device_z = upload(z, type),
                        device_weight = upload(weight, DType::kF32);
      for (const DType out_type : {type, DType::kF32}) {
        const DeviceArray out = output(at(rows * width) * dtype_bytes(out_type));
        delta_output({shape, device_o.as<float>(), device_z.data(), device_weight.as<float>(), out.data(), type,
                      out_type, rows, stride, eps},
                     stream());
        std::vector<double> expected, magnitude;
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t i = 0; i < width; ++i) {
            const float* const head = &o[at(row * width + i / shape.v_dim * shape.v_dim)];
            double squares = 0;
            for (int64_t j = 0; j < shape.v_dim; ++j) squares += double(head[j]) * head[j];
            const double scale = 1 / std::sqrt(squares / double(shape.v_dim) + eps);
            expected.push_back(o[at(row * width + i)] * scale * weight[at(i % shape.v_dim)] *
                               silu(z[at(row * stride + i)]));
            magnitude.push_back(std::fabs(expected.back()) + 1e-30);  // exp(-z) may be beyond the largest float
          }
        }
        testing_support::expect_close(download(out, out_type), expected, magnitude, out_type,
                                      str(name_of(shape), ", ", dtype_name(type), " to ", dtype_name(out_type)));
      }
    }
  }
}

}  // namespace
}  // namespace headrace
