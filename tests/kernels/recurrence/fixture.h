// Shapes, random tokens and trees, plain loops in double, and calls of the ops, for the tests of Gated DeltaNet.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/recurrence/op.h"
#include "tests/support/kernel_test.h"

namespace headrace::testing_support {

inline size_t at(int64_t value) { return static_cast<size_t>(value); }

// As many value heads as key heads, three for each, both orders; k_dim != v_dim; tiny, real and the largest sizes.
constexpr DeltaShape kDeltaShapes[] = {{1, 1, 8, 8, false},    {2, 2, 8, 24, false},   {2, 6, 16, 8, false},
                                       {2, 6, 16, 8, true},    {3, 3, 128, 128, true}, {2, 6, 128, 128, false},
                                       {2, 6, 128, 128, true}, {2, 4, 40, 136, true},  {1, 2, 128, 256, false}};
std::string name_of(const DeltaShape& shape);
int64_t key_head_of(const DeltaShape& shape, int64_t head);
inline int64_t state_size(const DeltaShape& shape) { return shape.v_heads * shape.k_dim * shape.v_dim; }

// What the recurrence takes of each token: q and k have norms of 1 / sqrt(k_dim) and 1, beta is in (0, 1), g below 0.
struct Tokens {
  int64_t rows = 0;
  std::vector<float> q, k, v, beta, g;
};
Tokens random_tokens(uint64_t seed, const DeltaShape& shape, int64_t rows);
Tokens chosen_tokens(const Tokens& from, const DeltaShape& shape, const std::vector<int32_t>& rows);
std::vector<float> chosen_rows(const std::vector<float>& from, int64_t width, const std::vector<int32_t>& rows);
std::vector<int32_t> ascending(int64_t first, int64_t count);

// Pass rows, parents before children.
struct Tree {
  std::vector<std::vector<int32_t>> paths;  // of each row, itself included
  int64_t rows() const { return static_cast<int64_t>(paths.size()); }
};
Tree chain(int64_t rows);
Tree random_tree(uint64_t seed, int64_t rows);

// Plain loops. The state is [v_heads, k_dim, v_dim]; o and d are those of the last token, [v_heads, v_dim].
struct PlainDelta {
  std::vector<double> state, o, d;
};
PlainDelta plain_delta(const DeltaShape& shape, const std::vector<float>& state);
void plain_step(const DeltaShape& shape, const Tokens& tokens, int64_t row, PlainDelta* delta);

// |actual - expected| <= tolerance * (|expected| + scale).
void expect_near(const std::vector<float>& actual, const std::vector<double>& expected, double tolerance, double scale,
                 const std::string& what);
void expect_same_bits(const std::vector<float>& actual, const std::vector<float>& expected, const std::string& what);

struct Ahead {
  std::vector<float> state;
  int32_t row = -1, length = 0;
};

class DeltaTest : public KernelTest {
 protected:
  static constexpr int32_t kCommitted = 1000;

  // A tree's arrays, as delta_inputs() expects them for the rows of each call.
  struct Places {
    DeviceArray positions, committed, path, first;
    int64_t path_stride;
    DeltaPath view() const {
      return {positions.as<int32_t>(), committed.as<int32_t>(), path.as<int32_t>(), path_stride, first.as<int32_t>()};
    }
  };
  Places places(const Tree& tree, int64_t first, int64_t rows);

  struct Walked {
    std::vector<float> o, d;  // [rows of the tree, v_heads, v_dim]
  };
  // One call for each of `calls`, with so many rows; the arrays have NaN in all rows that were not computed.
  Walked walk(const DeltaShape& shape, const std::vector<float>& state, const Tokens& tokens, const Tree& tree,
              const std::vector<int64_t>& calls, const Ahead& ahead = {});
  Walked walk_alone(const DeltaShape& shape, const std::vector<float>& state, const Tokens& tokens, const Tree& tree,
                    int64_t row);  // of the row's path, o and d of the row

  // The state after rows of `tokens`, whose d are known.
  std::vector<float> commit(const DeltaShape& shape, const std::vector<float>& state, const Tokens& tokens,
                            const std::vector<float>& d, const std::vector<int32_t>& source);

  struct Chunked {
    std::vector<float> o, state, conv;
  };
  Chunked chunks(const DeltaShape& shape, const Chunked& before, const Tokens& tokens, const std::vector<float>& m,
                 DType type);
};

}  // namespace headrace::testing_support
