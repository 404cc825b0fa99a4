#include "cache/partial.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

// Runs steps that each accept `accepted` tokens, their own sample included, and names their modes: "RPPPPR".
std::string modes(StepState state, int64_t accepted, int steps) {
  std::string names;
  for (int step = 0; step < steps; ++step) {
    const StepMode mode = step_mode(state);
    names += mode == StepMode::kFull ? 'F' : mode == StepMode::kPartial ? 'P' : 'R';
    state.rows += accepted;
    if (mode == StepMode::kPartial) {
      state.accepted += accepted;
      state.pending += accepted;
    } else if (mode == StepMode::kRefresh) {
      state.accepted = accepted;
      state.pending = 0;
      state.initialised = true;
    }
  }
  return names;
}

// The published sequence: 4 draft tokens and one of the target's own a step, from 5,000 tokens on.
TEST(StepMode, FollowsThePublishedSequence) {
  const StepState start{.rows = 5000, .least_context = 4256, .deepest = 8, .interval = 20};
  EXPECT_EQ(modes(start, 5, 12), "RPPPPRPPPPRP");
}

// After a prefill that filled the partial KV nothing has been accepted since: partial at 0, 5, 10, 15 and 20.
TEST(StepMode, BeginsPartialAfterAPrefillThatFilledThePartialKv) {
  const StepState start{.rows = 5000, .least_context = 4256, .initialised = true, .deepest = 8, .interval = 20};
  EXPECT_EQ(modes(start, 5, 11), "PPPPPRPPPPR");
}

TEST(StepMode, IsFullUntilTheContextOutgrowsTheBudget) {
  const StepState start{.rows = 4244, .least_context = 4256, .deepest = 8, .interval = 20};
  EXPECT_EQ(modes(start, 5, 6), "FFFRPP");
  EXPECT_EQ(modes({.rows = 1 << 20, .least_context = 0, .interval = 20}, 5, 4), "FFFF");
}

TEST(StepMode, EveryStepIsARefreshWhereNothingMayBePending) {
  EXPECT_EQ(modes({.rows = 5000, .least_context = 4256, .initialised = true, .deepest = 8, .interval = -1}, 3, 4),
            "RRRR");
}

// However long the interval, the pending rows and the deepest path of a step stay within what the tail holds.
TEST(StepMode, RefreshesEarlyWhereTheTailIsFull) {
  for (const int64_t deepest : {0, 1, 8, 63, 127}) {
    StepState state{
        .rows = 9000, .least_context = 4256, .initialised = true, .deepest = deepest, .interval = int64_t{1} << 40};
    while (step_mode(state) == StepMode::kPartial) {
      state.pending += deepest + 1;  // all of it is right
      state.accepted += deepest + 1;
      ASSERT_LE(state.pending, kMaxPending) << deepest;
      ASSERT_LT(state.pending + 63, kTailWindow) << deepest;
    }
    EXPECT_GT(state.pending, kMaxPending - 2 * (deepest + 1)) << deepest;
  }
}

// A run may have fewer pending tokens. Of an interval, the room for it and one step more changes no step.
TEST(StepMode, RefreshesWhereNoMoreTokensMayBePending) {
  StepState state{.rows = 9000, .least_context = 4256, .initialised = true, .deepest = 3, .interval = 1000};
  state.most_pending = 48;
  EXPECT_EQ(modes(state, 4, 14), "PPPPPPPPPPPPRP");
  state.deepest = 8;
  state.interval = 20;
  for (const int64_t accepted : {1, 5, 9}) {
    state.most_pending = 20 + 9;
    const std::string with_its_own = modes(state, accepted, 60);
    state.most_pending = kMaxPending;
    EXPECT_EQ(with_its_own, modes(state, accepted, 60)) << accepted;
  }
}

TEST(PartialShape, CountsRowsAndBytes) {
  const RowShape llama_8b{.layers = 32, .kv_heads = 8, .head_dim = 128};
  const PartialShape shape{.blocks = 256};
  EXPECT_EQ(shape.window_row(), 64 + 4096);
  EXPECT_EQ(shape.rows(), 64 + 4096 + 576);
  EXPECT_EQ(shape.bytes(llama_8b, 61440), uint64_t{4736} * 32 * 4096);
  EXPECT_EQ(PartialShape{}.bytes(llama_8b, 61440), 0u);
  EXPECT_EQ(block_index_bytes(llama_8b, 61440), uint64_t{3840} * 32 * 2 * 2048);
  EXPECT_EQ(block_count(61441), 3841);
}

// Of a row of K or V in 8 heads: values, and an f16 scale each; or half the bytes, and two f16 numbers for 32 values.
// The copy has the rows that some query's prefix has, in whole segments.
TEST(PartialShape, ACopyHasAllRowsBeforeTheTail) {
  const RowShape llama_8b{.layers = 32, .kv_heads = 8, .head_dim = 128};
  const PartialShape int8{.copy = DType::kInt8}, int4{.copy = DType::kInt4};
  EXPECT_EQ(int8.bytes(llama_8b, 61440), uint64_t{61440} * 32 * 2 * 8 * 130);
  EXPECT_EQ(int4.bytes(llama_8b, 61440), uint64_t{61440} * 32 * 2 * 8 * 80);
  EXPECT_EQ(copy_segments(61440), segments_for(61440));
  EXPECT_EQ(copy_segments(61440 + 256 + 63), segments_for(61440)) << "the last rows are in every query's tail";
  EXPECT_EQ(copy_segments(61440 + 256 + 64), segments_for(61440) + 1);
  for (const PartialShape& shape : {int8, int4}) {
    EXPECT_EQ(shape.least_context(), 320);
    EXPECT_EQ(tail_begin(shape.least_context() - 1), 0);
    EXPECT_GT(tail_begin(shape.least_context()), 0);
    EXPECT_FALSE(shape.serves(319));
    EXPECT_TRUE(shape.serves(2 * kMaxRankedRows)) << "a copy ranks no blocks";
  }
}

TEST(PartialShape, Int4RotatesHeadsOfAPowerOfTwo) {
  for (const int64_t size : {32, 64, 128, 256}) EXPECT_TRUE(copy_type_fits(DType::kInt4, size)) << size;
  for (const int64_t size : {16, 24, 80, 96}) EXPECT_FALSE(copy_type_fits(DType::kInt4, size)) << size;
  for (const int64_t size : {16, 80, 128}) EXPECT_TRUE(copy_type_fits(DType::kInt8, size)) << size;
}

// A window as long as the tail begins where the tail does. A shorter one has its rows before the next token, pending
// ones included, begins at a multiple of 64 rows and never behind the committed rows.
TEST(PartialShape, TheWindowHasItsRows) {
  EXPECT_EQ(PartialShape{.blocks = 1}.window_begin(1000, 0), tail_begin(1000));
  EXPECT_EQ(PartialShape{.blocks = 1}.window_begin(1000, 30), tail_begin(1000));
  const PartialShape specpv{.blocks = 256, .window = 128};
  EXPECT_EQ(specpv.window_begin(1000, 0), 832);
  EXPECT_EQ(specpv.window_begin(1000, 24), 896);
  EXPECT_EQ(specpv.window_begin(1000, 192), 960);
  EXPECT_EQ(specpv.window_begin(100, 0), 0);
  EXPECT_EQ(specpv.least_context(), 4288);
  for (int64_t committed = 300; committed < 500; ++committed) {
    for (const int64_t window : {64, 128, 192}) {
      const PartialShape shape{.blocks = 1, .window = window};
      const int64_t begin = shape.window_begin(committed, 20);
      ASSERT_GE(committed + 20 - begin, window);
      ASSERT_LT(committed + 20 - begin, window + 64);
      ASSERT_GE(begin, tail_begin(committed));
    }
  }
}

// From least_context() on, and not before, there are at least as many blocks between sink and tail as are to be chosen.
TEST(PartialShape, TheLeastContextHasTheBlocks) {
  for (const auto& [blocks, window] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {1, 256}, {6, 256}, {32, 256}, {256, 256}, {1024, 256}, {256, 128}, {7, 64}}) {
    const PartialShape shape{.blocks = blocks, .window = window};
    const auto between = [&](int64_t rows) { return (shape.window_begin(rows, 0) - kSinkRows) / kSelectRows; };
    EXPECT_LT(between(shape.least_context() - 1), blocks);
    for (int64_t rows = shape.least_context(); rows < shape.least_context() + 200; ++rows) {
      ASSERT_GE(between(rows), blocks) << rows;
    }
    EXPECT_EQ(shape.window_row() % kPrefixTile, 0);
  }
}

}  // namespace
}  // namespace headrace
