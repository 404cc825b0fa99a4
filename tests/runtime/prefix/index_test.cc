// The search for the longest saved beginning, and who goes first.
#include "runtime/prefix/index.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/runtime/prefix/blocks.h"

namespace headrace {
namespace {

using testing::blocks_of;
using testing::counted_tokens;
using testing::draft_block;
using testing::key_of;
using testing::kRoot;

void add(PrefixIndex* index, const std::vector<PrefixBlock>& blocks, int64_t used = 1) {
  for (const PrefixBlock& block : blocks) index->add({.block = block, .bytes = 10, .used_ns = used});
}

std::vector<int32_t> joined(std::vector<int32_t> first, const std::vector<int32_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(PrefixIndex, FindsTheLongestBeginning) {
  PrefixIndex index;
  const std::vector<int32_t> document = counted_tokens(1400);
  add(&index, blocks_of(document));
  EXPECT_EQ(index.match(kRoot, document, 1).rows, 1399);  // the last token is computed
  EXPECT_EQ(index.match(kRoot, document, 1).blocks.size(), 3u);
  EXPECT_EQ(index.match(kRoot, document, 512).rows, 1024);
  EXPECT_EQ(index.match(kRoot, document, 512).blocks.size(), 2u);
  EXPECT_EQ(index.match(kRoot, document, 2048).rows, 0);
  EXPECT_EQ(index.match(kRoot, joined(document, {1, 2, 3}), 1).rows, 1400);
  for (const int64_t common : {0, 1, 511, 512, 513, 1023, 1024, 1399}) {
    std::vector<int32_t> other = counted_tokens(common);
    other.resize(3000, 7);
    const PrefixMatch match = index.match(kRoot, other, 1);
    EXPECT_EQ(match.rows, common);
    EXPECT_EQ(static_cast<int64_t>(match.blocks.size()), segments_for(common));
  }
  EXPECT_EQ(index.match(prefix_root(key_of(2)), document, 1).rows, 0);  // another model's
}

TEST(PrefixIndex, TakesTheBetterOfTwoThatGoOnDifferently) {
  PrefixIndex index;
  const std::vector<int32_t> shared = counted_tokens(512);
  const std::vector<int32_t> a = joined(shared, counted_tokens(300, 5000));
  std::vector<int32_t> b = a;
  b[512 + 100] = 1;
  add(&index, blocks_of(a));
  add(&index, blocks_of(b));
  EXPECT_EQ(index.entries().size(), 3u);  // the first segment once
  EXPECT_EQ(index.match(kRoot, joined(a, {9}), 1).rows, 812);
  EXPECT_EQ(index.match(kRoot, joined(b, {9}), 1).rows, 812);
  b[512 + 200] = 1;
  EXPECT_EQ(index.match(kRoot, b, 1).rows, 712);
}

TEST(PrefixIndex, AGapEndsTheMatch) {
  PrefixIndex index;
  const std::vector<int32_t> document = counted_tokens(2048);
  std::vector<PrefixBlock> blocks = blocks_of(document);
  blocks.erase(blocks.begin() + 2);
  add(&index, blocks);
  EXPECT_EQ(index.match(kRoot, document, 1).rows, 1024);
  EXPECT_EQ(index.orphans(), std::vector{blocks.back().key});
}

TEST(PrefixIndex, StatesEndAMatch) {
  PrefixIndex index;
  const std::vector<int32_t> document = counted_tokens(1400);
  const std::vector<PrefixBlock> blocks = blocks_of(document), shorter = blocks_of(counted_tokens(640));
  add(&index, blocks);
  add(&index, {shorter.back()});
  const auto rows = [&](int64_t most, int64_t unit = 64) {
    PrefixMatch match = index.match(kRoot, document, 1);
    match.cut(most, unit);
    const std::optional<PrefixKey> states = index.cut_to_states(document, unit, &match);
    EXPECT_EQ(states.has_value(), match.rows > 0);
    EXPECT_EQ(static_cast<int64_t>(match.blocks.size()), segments_for(match.rows));
    return match.rows;
  };
  EXPECT_EQ(rows(1400), 0);
  add(&index, {testing::states_block(blocks[0], 3), testing::states_block(blocks[1], 3)});
  EXPECT_EQ(rows(1400), 1024);
  EXPECT_EQ(rows(1024), 1024);
  EXPECT_EQ(rows(1023), 512);
  EXPECT_EQ(rows(511), 0);
  // Behind the rows of another prompt, whose block is not the one that the match goes on in.
  add(&index, {testing::states_block(shorter.back(), 3)});
  EXPECT_EQ(rows(1400), 1024);
  EXPECT_EQ(rows(1023), 640);
  EXPECT_EQ(rows(639), 512);
  EXPECT_EQ(rows(1023, 512), 512);
  std::vector<int32_t> other = document;
  other[639] = 1;
  PrefixMatch match = index.match(kRoot, other, 64);
  EXPECT_EQ(match.rows, 576);
  EXPECT_EQ(index.cut_to_states(other, 64, &match), states_key(blocks[0].key));
  EXPECT_EQ(match.rows, 512);
}

// They go before the rows that they are behind, and with them.
TEST(PrefixIndex, StatesAreEvictedAsRowsAre) {
  PrefixIndex index;
  const std::vector<PrefixBlock> blocks = blocks_of(counted_tokens(1024));
  const PrefixBlock first = testing::states_block(blocks[0], 3), second = testing::states_block(blocks[1], 3);
  add(&index, blocks);
  add(&index, {first, second});
  EXPECT_TRUE(index.orphans().empty());
  const std::vector<PrefixKey> dropped = index.to_drop(0, {});
  EXPECT_EQ(dropped.size(), 4u);
  const auto place = [&](const PrefixKey& key) { return std::find(dropped.begin(), dropped.end(), key); };
  EXPECT_LT(place(second.key), place(blocks[1].key));
  EXPECT_LT(place(first.key), place(blocks[0].key));
  index.remove(blocks[1].key);
  EXPECT_EQ(index.orphans(), std::vector{second.key});
}

// Blocks of one prompt are written one after the other. What remains of it is its beginning, with states.
TEST(PrefixIndex, APromptIsEvictedFromItsEnd) {
  PrefixIndex index;
  const std::vector<PrefixBlock> blocks = blocks_of(counted_tokens(1536));
  const PrefixBlock first = testing::states_block(blocks[0], 3), second = testing::states_block(blocks[1], 3);
  add(&index, {blocks[0]}, 1);
  add(&index, {first}, 2);
  add(&index, {blocks[1]}, 3);
  add(&index, {second}, 4);
  add(&index, {blocks[2]}, 5);
  EXPECT_EQ(index.to_drop(index.bytes() - 30, {}), (std::vector{blocks[2].key, second.key, blocks[1].key}));
}

TEST(PrefixIndex, ADraftNeedsItsOwnBlocks) {
  PrefixIndex index;
  const PrefixKey draft = key_of(8);
  const std::vector<int32_t> document = counted_tokens(2000);
  const std::vector<PrefixBlock> blocks = blocks_of(document);
  add(&index, blocks);
  const auto rows = [&](int64_t first) {
    PrefixMatch match = index.match(kRoot, document, 1);
    index.cut_for_draft(draft, first, 1, &match);
    return match.rows;
  };
  EXPECT_EQ(rows(0), 0);
  EXPECT_EQ(rows(1600), 0);  // its first rows are missing, too
  add(&index, {draft_block(blocks[0], draft)});
  EXPECT_EQ(rows(0), 512);
  EXPECT_EQ(rows(1600), 1536);
  EXPECT_EQ(rows(1024), 1024);
  add(&index, {draft_block(blocks[3], draft)});
  EXPECT_EQ(rows(1600), 1999);
  EXPECT_EQ(rows(1536), 1999);
  EXPECT_EQ(rows(1500), 1024);
  add(&index, {draft_block(blocks[1], key_of(9)), draft_block(blocks[2], draft)});
  EXPECT_EQ(rows(1500), 1999);
  EXPECT_EQ(rows(0), 512);  // the second is another draft's
}

TEST(PrefixIndex, TheLeastRecentlyUsedGoesFirstAndLeavesNoGap) {
  PrefixIndex index;
  const std::vector<PrefixBlock> a = blocks_of(counted_tokens(1536)), b = blocks_of(counted_tokens(1024, 9000));
  add(&index, a, 5);
  add(&index, b, 9);
  add(&index, {draft_block(a[0], key_of(8))}, 1);
  EXPECT_EQ(index.bytes(), 60u);
  EXPECT_TRUE(index.to_drop(60, {}).empty());
  EXPECT_EQ(index.to_drop(55, {}).size(), 1u);  // the draft's
  const std::vector<PrefixKey> drops = index.to_drop(30, {});
  EXPECT_EQ(drops, (std::vector{draft_key(a[0].key, key_of(8)), a[2].key, a[1].key}));
  EXPECT_EQ(index.to_drop(0, {}).size(), 6u);
  // What is kept keeps what it stands on.
  const std::vector<PrefixKey> others = index.to_drop(0, {a[1].key});
  EXPECT_EQ(others.size(), 4u);
  EXPECT_EQ(std::count(others.begin(), others.end(), a[0].key), 0);
  index.touch(a[2].key, 10);
  EXPECT_EQ(index.to_drop(45, {}).back(), b[1].key);
}

TEST(PrefixIndex, ARemovedBlockTakesWhatContinuesItAlong) {
  PrefixIndex index;
  const std::vector<PrefixBlock> blocks = blocks_of(counted_tokens(1536));
  add(&index, blocks);
  const std::vector<PrefixKey> gone = index.with_descendants(blocks[1].key);
  EXPECT_EQ(gone, (std::vector{blocks[2].key, blocks[1].key}));
  for (const PrefixKey& key : gone) index.remove(key);
  EXPECT_EQ(index.match(kRoot, counted_tokens(1536), 1).rows, 512);
  EXPECT_EQ(index.bytes(), 10u);
}

}  // namespace
}  // namespace headrace
