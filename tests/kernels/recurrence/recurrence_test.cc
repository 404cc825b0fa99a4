// The recurrence and the commit: against plain loops in double, and bit for bit along paths, calls and passes.
#include <gtest/gtest.h>

#include "tests/kernels/recurrence/fixture.h"

namespace headrace {
namespace {

using testing_support::Ahead;
using testing_support::ascending;
using testing_support::at;
using testing_support::chain;
using testing_support::chosen_rows;
using testing_support::chosen_tokens;
using testing_support::DeltaTest;
using testing_support::expect_near;
using testing_support::expect_same_bits;
using testing_support::kDeltaShapes;
using testing_support::name_of;
using testing_support::plain_delta;
using testing_support::plain_step;
using testing_support::PlainDelta;
using testing_support::random_tokens;
using testing_support::random_tree;
using testing_support::random_values;
using testing_support::state_size;
using testing_support::Tokens;
using testing_support::Tree;

class RecurrenceTest : public DeltaTest {};
INSTANTIATE_KERNEL_TEST(RecurrenceTest);

TEST_P(RecurrenceTest, EqualsPlainLoopsAlongEveryPath) {
  uint64_t seed = 1;
  for (const DeltaShape& shape : kDeltaShapes) {
    const int64_t rows = 11;
    const Tokens tokens = random_tokens(seed += 10, shape, rows);
    const std::vector<float> state = random_values(++seed, state_size(shape), 0.3f);
    const Tree tree = random_tree(++seed, rows);
    const Walked walked = walk(shape, state, tokens, tree, {rows});
    for (int64_t row = 0; row < rows; ++row) {
      PlainDelta plain = plain_delta(shape, state);
      for (const int32_t node : tree.paths[at(row)]) plain_step(shape, tokens, node, &plain);
      const std::vector<int32_t> own = {static_cast<int32_t>(row)};
      const std::string what = str(name_of(shape), ", row ", row);
      expect_near(chosen_rows(walked.o, shape.v_width(), own), plain.o, 1e-5, 1, what + ", o");
      expect_near(chosen_rows(walked.d, shape.v_width(), own), plain.d, 1e-5, 1, what + ", d");
    }
  }
}

TEST_P(RecurrenceTest, ARowsBitsAreThoseOfItsPathAlone) {
  uint64_t seed = 1;
  for (const DeltaShape& shape : kDeltaShapes) {
    const int64_t rows = 17;
    const Tokens tokens = random_tokens(seed += 10, shape, rows);
    const std::vector<float> state = random_values(++seed, state_size(shape));
    const Tree tree = random_tree(++seed, rows);
    const Walked walked = walk(shape, state, tokens, tree, {rows});
    for (int64_t row = 0; row < rows; ++row) {
      const Walked alone = walk_alone(shape, state, tokens, tree, row);
      const std::vector<int32_t> own = {static_cast<int32_t>(row)};
      const std::string what = str(name_of(shape), ", row ", row);
      expect_same_bits(chosen_rows(walked.o, shape.v_width(), own), alone.o, what + ", o");
      expect_same_bits(chosen_rows(walked.d, shape.v_width(), own), alone.d, what + ", d");
    }
  }
}

// Rows of earlier calls are pending: their k, d and g are read, and they are replayed.
TEST_P(RecurrenceTest, CallsDoNotChangeBits) {
  uint64_t seed = 100;
  for (const DeltaShape& shape : kDeltaShapes) {
    const int64_t rows = 14;
    const Tokens tokens = random_tokens(seed += 10, shape, rows);
    const std::vector<float> state = random_values(++seed, state_size(shape));
    for (const Tree& tree : {chain(rows), random_tree(++seed, rows), random_tree(++seed, rows)}) {
      const Walked once = walk(shape, state, tokens, tree, {rows});
      for (const std::vector<int64_t>& calls : {std::vector<int64_t>{5, 9}, {1, 1, 8, 4}}) {
        const Walked parts = walk(shape, state, tokens, tree, calls);
        expect_same_bits(parts.o, once.o, name_of(shape) + ", o");
        expect_same_bits(parts.d, once.d, name_of(shape) + ", d");
      }
    }
  }
}

TEST_P(RecurrenceTest, AStateAheadChangesNoBits) {
  uint64_t seed = 200;
  for (const DeltaShape& shape : kDeltaShapes) {
    const int64_t rows = 16, pending = 8;
    const Tokens tokens = random_tokens(seed += 10, shape, rows);
    const std::vector<float> state = random_values(++seed, state_size(shape));
    for (const Tree& tree : {chain(rows), random_tree(++seed, rows)}) {
      const Walked once = walk(shape, state, tokens, tree, {pending, rows - pending});
      for (const int32_t row : {0, 3, 7}) {
        const std::vector<int32_t>& path = tree.paths[at(row)];
        Ahead ahead = {commit(shape, state, tokens, once.d, path), row, static_cast<int32_t>(path.size())};
        const Walked started = walk(shape, state, tokens, tree, {pending, rows - pending}, ahead);
        expect_same_bits(started.o, once.o, name_of(shape) + ", o");
        ahead.row = -1;  // no path ends there, so that the state is not read
        ahead.state.assign(ahead.state.size(), 1e30f);
        expect_same_bits(walk(shape, state, tokens, tree, {pending, rows - pending}, ahead).o, once.o,
                         name_of(shape) + ", none");
      }
    }
  }
}

// Where it is used, it is read: another state there gives other outputs.
TEST_P(RecurrenceTest, AStateAheadIsRead) {
  const DeltaShape shape = kDeltaShapes[1];
  const Tokens tokens = random_tokens(1, shape, 6);
  const std::vector<float> state = random_values(2, state_size(shape)), other = random_values(3, state_size(shape));
  const Walked once = walk(shape, state, tokens, chain(6), {4, 2});
  const Walked started = walk(shape, state, tokens, chain(6), {4, 2}, {other, 3, 4});
  const std::vector<int32_t> before = ascending(0, 4), last = {5};
  expect_same_bits(chosen_rows(started.o, shape.v_width(), before), chosen_rows(once.o, shape.v_width(), before), "o");
  EXPECT_NE(chosen_rows(started.o, shape.v_width(), last), chosen_rows(once.o, shape.v_width(), last));
}

TEST_P(RecurrenceTest, APassOfRowsEqualsPassesWithCommits) {
  uint64_t seed = 300;
  for (const DeltaShape& shape : kDeltaShapes) {
    const int64_t rows = 9;
    const Tokens tokens = random_tokens(seed += 10, shape, rows);
    const std::vector<float> before = random_values(++seed, state_size(shape));
    const Walked once = walk(shape, before, tokens, chain(rows), {rows});
    const std::vector<float> after = commit(shape, before, tokens, once.d, ascending(0, rows));
    std::vector<float> state = before;
    for (int32_t row = 0; row < rows; ++row) {
      const Tokens own = chosen_tokens(tokens, shape, {row});
      const Walked step = walk(shape, state, own, chain(1), {1});
      expect_same_bits(step.o, chosen_rows(once.o, shape.v_width(), {row}), str(name_of(shape), ", row ", row));
      state = commit(shape, state, own, step.d, {0});
    }
    expect_same_bits(state, after, name_of(shape) + ", state");
  }
}

TEST_P(RecurrenceTest, ACommittedPathEqualsThePathOnTheWay) {
  const DeltaShape shape = kDeltaShapes[6];
  const int64_t rows = 20;
  const Tokens tokens = random_tokens(7, shape, rows);
  const std::vector<float> before = random_values(8, state_size(shape));
  const Tree tree = random_tree(9, rows);
  const Walked once = walk(shape, before, tokens, tree, {rows});
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int32_t> path = tree.paths[at(row)];
    path.pop_back();
    const std::vector<float> state = commit(shape, before, tokens, once.d, path);
    const Tokens own = chosen_tokens(tokens, shape, {static_cast<int32_t>(row)});
    expect_same_bits(walk(shape, state, own, chain(1), {1}).o,
                     chosen_rows(once.o, shape.v_width(), {static_cast<int32_t>(row)}), str("row ", row));
  }
}

TEST_P(RecurrenceTest, ThreadsDoNotChangeBits) {
  const DeltaShape shape = kDeltaShapes[7];
  const Tokens tokens = random_tokens(1, shape, 8);
  const std::vector<float> state = random_values(2, state_size(shape));
  const Walked two = walk(shape, state, tokens, random_tree(3, 8), {8});
  open(1);
  expect_same_bits(walk(shape, state, tokens, random_tree(3, 8), {8}).o, two.o, "one thread");
}

// All layers in one call, and the convolution state, for few rows and for many.
TEST_P(RecurrenceTest, CommitsAllLayersAndTheConvolutionState) {
  const DeltaShape shape = kDeltaShapes[3];
  const int64_t layers = 3, pass_rows = 7, channels = shape.channels();
  const Tokens tokens = random_tokens(1, shape, layers * pass_rows);
  const std::vector<float> d = random_values(6, layers * pass_rows * shape.v_width());
  const std::vector<float> before = random_values(7, layers * state_size(shape));
  for (const DType type : testing_support::kAllTypes) {
    const std::vector<float> m = testing_support::rounded(random_values(8, layers * pass_rows * channels), type);
    const std::vector<float> conv_before = testing_support::rounded(random_values(9, layers * 3 * channels), type);
    for (const std::vector<int32_t>& source : {std::vector<int32_t>{4}, {6, 2}, {0, 2, 5}, {1, 3, 4, 5, 6}}) {
      const testing_support::DeviceArray state = upload(before, DType::kF32), conv = upload(conv_before, type),
                                         rows_of_m = upload(m, type), k = upload(tokens.k, DType::kF32),
                                         stored_d = upload(d, DType::kF32), g = upload(tokens.g, DType::kF32),
                                         list = upload_raw(source);
      const auto count = static_cast<int64_t>(source.size());
      delta_commit({shape,
                    {rows_of_m.data(), k.as<float>(), stored_d.as<float>(), g.as<float>()},
                    list.as<int32_t>(),
                    state.as<float>(),
                    conv.data(),
                    type,
                    layers,
                    pass_rows,
                    count},
                   stream());
      const std::vector<float> after = download(state, DType::kF32), conv_after = download(conv, type);
      for (int64_t layer = 0; layer < layers; ++layer) {
        const std::vector<int32_t> rows = ascending(layer * pass_rows, pass_rows), own = {static_cast<int32_t>(layer)};
        expect_same_bits(chosen_rows(after, state_size(shape), own),
                         commit(shape, chosen_rows(before, state_size(shape), own), chosen_tokens(tokens, shape, rows),
                                chosen_rows(d, shape.v_width(), rows), source),
                         str("layer ", layer, ", ", count, " rows"));
        std::vector<float> all = chosen_rows(conv_before, 3 * channels, own);
        const std::vector<float> added = chosen_rows(chosen_rows(m, channels, rows), channels, source);
        all.insert(all.end(), added.begin(), added.end());
        expect_same_bits(chosen_rows(conv_after, 3 * channels, own), chosen_rows(all, channels, ascending(count, 3)),
                         str("conv of layer ", layer, ", ", count, " rows"));
      }
    }
  }
}

}  // namespace
}  // namespace headrace
