#include "tests/kernels/recurrence/fixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace headrace::testing_support {

std::string name_of(const DeltaShape& shape) {
  return str(shape.k_heads, "/", shape.v_heads, " heads of ", shape.k_dim, "x", shape.v_dim,
             shape.tiled ? ", tiled" : "");
}

int64_t key_head_of(const DeltaShape& shape, int64_t head) {
  return shape.tiled ? head % shape.k_heads : head / (shape.v_heads / shape.k_heads);
}

namespace {

std::vector<float> unit_rows(uint64_t seed, int64_t rows, int64_t dim, double scale) {
  std::vector<float> values = random_values(seed, rows * dim);
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0;
    for (int64_t i = 0; i < dim; ++i) squares += std::pow(double(values[at(row * dim + i)]), 2);
    const double factor = scale / std::sqrt(squares);
    for (int64_t i = 0; i < dim; ++i) {
      values[at(row * dim + i)] = static_cast<float>(values[at(row * dim + i)] * factor);
    }
  }
  return values;
}

}  // namespace

Tokens random_tokens(uint64_t seed, const DeltaShape& shape, int64_t rows) {
  Tokens tokens;
  tokens.rows = rows;
  tokens.q = unit_rows(seed + 1, rows * shape.k_heads, shape.k_dim, 1 / std::sqrt(double(shape.k_dim)));
  tokens.k = unit_rows(seed + 2, rows * shape.k_heads, shape.k_dim, 1);
  tokens.v = random_values(seed + 3, rows * shape.v_width());
  tokens.beta = random_values(seed + 4, rows * shape.v_heads);
  tokens.g = random_values(seed + 5, rows * shape.v_heads);
  for (float& beta : tokens.beta) beta = 1.0f / (1.0f + std::exp(-beta));
  for (float& g : tokens.g) g = -0.1f * std::fabs(g);
  return tokens;
}

std::vector<float> chosen_rows(const std::vector<float>& from, int64_t width, const std::vector<int32_t>& rows) {
  std::vector<float> to;
  for (const int32_t row : rows) to.insert(to.end(), from.begin() + row * width, from.begin() + (row + 1) * width);
  return to;
}

Tokens chosen_tokens(const Tokens& from, const DeltaShape& shape, const std::vector<int32_t>& rows) {
  return {static_cast<int64_t>(rows.size()),           chosen_rows(from.q, shape.k_width(), rows),
          chosen_rows(from.k, shape.k_width(), rows),  chosen_rows(from.v, shape.v_width(), rows),
          chosen_rows(from.beta, shape.v_heads, rows), chosen_rows(from.g, shape.v_heads, rows)};
}

std::vector<int32_t> ascending(int64_t first, int64_t count) {
  std::vector<int32_t> values(at(count));
  std::iota(values.begin(), values.end(), static_cast<int32_t>(first));
  return values;
}

Tree chain(int64_t rows) {
  Tree tree;
  for (int64_t row = 0; row < rows; ++row) tree.paths.push_back(ascending(0, row + 1));
  return tree;
}

Tree random_tree(uint64_t seed, int64_t rows) {
  std::mt19937_64 random(seed);
  Tree tree;
  for (int64_t row = 0; row < rows; ++row) {
    // Often the row before, so that paths become long.
    const int64_t parent = random() % 2 == 0 ? row - 1 : static_cast<int64_t>(random() % at(row + 1)) - 1;
    tree.paths.push_back(parent < 0 ? std::vector<int32_t>() : tree.paths[at(parent)]);
    tree.paths.back().push_back(static_cast<int32_t>(row));
  }
  return tree;
}

PlainDelta plain_delta(const DeltaShape& shape, const std::vector<float>& state) {
  return {
      {state.begin(), state.end()}, std::vector<double>(at(shape.v_width())), std::vector<double>(at(shape.v_width()))};
}

void plain_step(const DeltaShape& shape, const Tokens& tokens, int64_t row, PlainDelta* delta) {
  for (int64_t head = 0; head < shape.v_heads; ++head) {
    const float* const q = &tokens.q[at(row * shape.k_width() + key_head_of(shape, head) * shape.k_dim)];
    const float* const k = &tokens.k[at(row * shape.k_width() + key_head_of(shape, head) * shape.k_dim)];
    const double alpha = std::exp(double(tokens.g[at(row * shape.v_heads + head)]));
    const double beta = tokens.beta[at(row * shape.v_heads + head)];
    for (int64_t col = 0; col < shape.v_dim; ++col) {
      double* const s = &delta->state[at(head * shape.k_dim * shape.v_dim + col)];
      double seen = 0, o = 0;
      for (int64_t i = 0; i < shape.k_dim; ++i) seen += alpha * s[i * shape.v_dim] * k[i];
      const double d = beta * (tokens.v[at(row * shape.v_width() + head * shape.v_dim + col)] - seen);
      for (int64_t i = 0; i < shape.k_dim; ++i) {
        s[i * shape.v_dim] = alpha * s[i * shape.v_dim] + k[i] * d;
        o += s[i * shape.v_dim] * q[i];
      }
      delta->d[at(head * shape.v_dim + col)] = d;
      delta->o[at(head * shape.v_dim + col)] = o;
    }
  }
}

void expect_near(const std::vector<float>& actual, const std::vector<double>& expected, double tolerance, double scale,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::fabs(actual[i] - expected[i]) / (std::fabs(expected[i]) + scale);
    if (!(error <= worst)) worst = error, where = i;  // a NaN, too
  }
  EXPECT_LE(worst, tolerance) << what << ": element " << where << " is " << actual[where] << ", expected "
                              << expected[where];
}

void expect_same_bits(const std::vector<float>& actual, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_FALSE(std::isnan(actual[i])) << what << ": element " << i << " of " << actual.size();
    ASSERT_EQ(actual[i], expected[i]) << what << ": element " << i << " of " << actual.size();
  }
}

// ---- The ops --------------------------------------------------------------------------------------------------------

DeltaTest::Places DeltaTest::places(const Tree& tree, int64_t first, int64_t rows) {
  size_t longest = 0;
  for (int64_t row = first; row < first + rows; ++row) longest = std::max(longest, tree.paths[at(row)].size());
  const size_t stride = longest + 3;
  std::vector<int32_t> positions, path(at(rows) * stride, -77);
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int32_t>& nodes = tree.paths[at(first + row)];
    positions.push_back(kCommitted + static_cast<int32_t>(nodes.size()) - 1);
    std::copy(nodes.begin(), nodes.end(), path.begin() + row * static_cast<int64_t>(stride));
  }
  return {upload_raw(positions), upload_raw<int32_t>({kCommitted}), upload_raw(path),
          upload_raw<int32_t>({static_cast<int32_t>(first)}), static_cast<int64_t>(stride)};
}

DeltaTest::Walked DeltaTest::walk(const DeltaShape& shape, const std::vector<float>& state, const Tokens& tokens,
                                  const Tree& tree, const std::vector<int64_t>& calls, const Ahead& ahead) {
  const DeviceArray s = upload(state, DType::kF32), k = upload(tokens.k, DType::kF32),
                    g = upload(tokens.g, DType::kF32), ahead_state = upload(ahead.state, DType::kF32);
  const DeviceArray ahead_row = upload_raw<int32_t>({ahead.row}), ahead_length = upload_raw<int32_t>({ahead.length});
  const DeviceArray d = output(at(tokens.rows * shape.v_width()) * sizeof(float));
  Walked walked;
  int64_t first = 0;
  for (const int64_t rows : calls) {
    const Tokens own = chosen_tokens(tokens, shape, ascending(first, rows));
    const DeviceArray q = upload(own.q, DType::kF32), v = upload(own.v, DType::kF32),
                      beta = upload(own.beta, DType::kF32);
    const DeviceArray o = output(at(rows * shape.v_width()) * sizeof(float));
    const Places where = places(tree, first, rows);
    DeltaRecurrenceParams params{};
    params.shape = shape;
    params.state = s.as<float>();
    params.q = q.as<float>(), params.v = v.as<float>(), params.beta = beta.as<float>();
    params.path = where.view();
    params.stored = {nullptr, k.as<float>(), d.as<float>(), g.as<float>()};
    params.o = o.as<float>();
    params.rows = rows;
    params.pass_rows = tokens.rows;
    if (!ahead.state.empty()) {
      params.ahead = {ahead_state.as<float>(), ahead_row.as<int32_t>(), ahead_length.as<int32_t>()};
    }
    delta_recurrence(params, stream());
    const std::vector<float> part = download(o, DType::kF32);
    walked.o.insert(walked.o.end(), part.begin(), part.end());
    first += rows;
  }
  walked.d = download(d, DType::kF32);
  expect_same_bits(download(s, DType::kF32), state, "the state is only read");
  return walked;
}

DeltaTest::Walked DeltaTest::walk_alone(const DeltaShape& shape, const std::vector<float>& state, const Tokens& tokens,
                                        const Tree& tree, int64_t row) {
  const std::vector<int32_t>& path = tree.paths[at(row)];
  const auto length = static_cast<int64_t>(path.size());
  const Walked all = walk(shape, state, chosen_tokens(tokens, shape, path), chain(length), {length});
  const std::vector<int32_t> last = {static_cast<int32_t>(length - 1)};
  return {chosen_rows(all.o, shape.v_width(), last), chosen_rows(all.d, shape.v_width(), last)};
}

std::vector<float> DeltaTest::commit(const DeltaShape& shape, const std::vector<float>& state, const Tokens& tokens,
                                     const std::vector<float>& d, const std::vector<int32_t>& source) {
  const DeviceArray s = upload(state, DType::kF32), k = upload(tokens.k, DType::kF32),
                    stored_d = upload(d, DType::kF32), g = upload(tokens.g, DType::kF32), list = upload_raw(source);
  DeltaCommitParams params{};
  params.shape = shape;
  params.stored = {nullptr, k.as<float>(), stored_d.as<float>(), g.as<float>()};
  params.source = list.as<int32_t>();
  params.state = s.as<float>();
  params.layers = 1;
  params.pass_rows = tokens.rows;
  params.count = static_cast<int64_t>(source.size());
  delta_commit(params, stream());
  return download(s, DType::kF32);
}

DeltaTest::Chunked DeltaTest::chunks(const DeltaShape& shape, const Chunked& before, const Tokens& tokens,
                                     const std::vector<float>& m, DType type) {
  const DeviceArray q = upload(tokens.q, DType::kF32), k = upload(tokens.k, DType::kF32),
                    v = upload(tokens.v, DType::kF32), beta = upload(tokens.beta, DType::kF32),
                    g = upload(tokens.g, DType::kF32), rows_of_m = upload(m, type);
  const DeviceArray state = upload(before.state, DType::kF32), conv = upload(before.conv, type);
  const DeviceArray o = output(tokens.v.size() * sizeof(float)),
                    scratch = output(delta_chunks_scratch_bytes(shape, tokens.rows));
  DeltaChunksParams params{};
  params.shape = shape;
  params.q = q.as<float>(), params.k = k.as<float>(), params.v = v.as<float>();
  params.beta = beta.as<float>(), params.g = g.as<float>();
  params.m = rows_of_m.data();
  params.state = state.as<float>();
  params.conv = conv.data();
  params.o = o.as<float>();
  params.scratch = scratch.data();
  params.type = type;
  params.rows = tokens.rows;
  params.m_stride = static_cast<int64_t>(m.size()) / tokens.rows;
  delta_chunks(params, stream());
  download(scratch);  // its guards
  return {download(o, DType::kF32), download(state, DType::kF32), download(conv, type)};
}

}  // namespace headrace::testing_support
