// Manifests: what is written is read, and nothing else.
#include "runtime/prefix/block.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "offload/host/checksum.h"
#include "tests/runtime/prefix/blocks.h"

namespace headrace {
namespace {

using testing::counted_tokens;
using testing::draft_block;
using testing::key_of;
using testing::rows_block;
using testing::states_block;

std::optional<PrefixBlock> decode(std::string_view bytes) {
  std::string wrong;
  std::optional<PrefixBlock> block = decode_manifest(bytes, "a.seg", &wrong);
  EXPECT_EQ(block.has_value(), wrong.empty()) << wrong;
  return block;
}

// The checksum behind the bytes made right again.
std::string sealed(std::string text) {
  text.resize(text.size() - sizeof(uint64_t));
  const uint64_t sum = checksum(std::as_bytes(std::span(text)));
  return text.append(reinterpret_cast<const char*>(&sum), sizeof sum);
}

TEST(PrefixBlock, AManifestSaysWhatWasWritten) {
  PrefixBlock block = rows_block(key_of(3), 512, counted_tokens(500), 3);
  block.checksums = {1, UINT64_MAX, 3};
  const std::optional<PrefixBlock> read = decode(encode_manifest(block));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->kind, PrefixBlockKind::kRows);
  EXPECT_EQ(read->key, block.key);
  EXPECT_EQ(read->parent, block.parent);
  EXPECT_EQ(read->identity, block.identity);
  EXPECT_EQ(read->model, "a model");
  EXPECT_EQ(read->first_row, 512);
  EXPECT_EQ(read->rows, 500);
  EXPECT_EQ(read->part_bytes, kPageBytes);
  EXPECT_EQ(read->checksums, block.checksums);
  EXPECT_EQ(read->tokens, block.tokens);
  const PrefixBlock draft = draft_block(block, key_of(9));
  EXPECT_EQ(decode(encode_manifest(draft))->parent, block.key);
  const PrefixBlock states = states_block(block, 7);
  const std::optional<PrefixBlock> read_states = decode(encode_manifest(states));
  ASSERT_TRUE(read_states);
  EXPECT_EQ(read_states->kind, PrefixBlockKind::kStates);
  EXPECT_EQ(read_states->key, states_key(block.key));
  EXPECT_EQ(read_states->parent, block.key);
  EXPECT_EQ(read_states->end_row(), 1012);
  EXPECT_EQ(read_states->checksums.size(), 7u);
}

// Blocks of rows and of drafts are as a program writes and reads them that knows no states; to it, states are of a
// newer format.
TEST(PrefixBlock, OnlyStatesHaveTheSecondFormat) {
  const PrefixBlock rows = rows_block(key_of(3), 0, counted_tokens(9));
  const auto version = [](const PrefixBlock& block) { return static_cast<int>(encode_manifest(block)[8]); };
  EXPECT_EQ(version(rows), 1);
  EXPECT_EQ(version(draft_block(rows, key_of(9))), 1);
  EXPECT_EQ(version(states_block(rows, 2)), 2);
  for (const PrefixBlock& block : {rows, draft_block(rows, key_of(9)), states_block(rows, 2)}) {
    std::string text = encode_manifest(block);
    const uint32_t other = version(block) == 1 ? 2 : 1, both[2] = {other, ~other};
    std::memcpy(text.data() + 8, both, sizeof both);
    EXPECT_FALSE(decode(sealed(text)));
  }
}

TEST(PrefixBlock, KeysDependOnAllThatIsBefore) {
  const std::vector<int32_t> tokens = counted_tokens(5), others = counted_tokens(5, 101);
  EXPECT_NE(rows_key(key_of(1), tokens), rows_key(key_of(2), tokens));
  EXPECT_NE(rows_key(key_of(1), tokens), rows_key(key_of(1), others));
  EXPECT_NE(prefix_root(key_of(1)), prefix_root(key_of(2)));
  EXPECT_NE(draft_key(key_of(1), key_of(2)), draft_key(key_of(2), key_of(1)));
  EXPECT_EQ(parse_key(key_text(prefix_root(key_of(7)))), prefix_root(key_of(7)));
  EXPECT_FALSE(parse_key("00"));
  EXPECT_FALSE(parse_key(std::string(64, 'G')));
}

TEST(PrefixBlock, EveryCutAndEveryFlippedBitIsSeen) {
  const PrefixBlock rows = rows_block(key_of(3), 0, counted_tokens(9));
  for (const std::string& good : {encode_manifest(rows), encode_manifest(states_block(rows, 3))}) {
    for (size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(decode(good.substr(0, size))) << size;
    EXPECT_FALSE(decode(good + "x"));
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
      EXPECT_FALSE(decode(bad)) << bit;
    }
  }
}

// With the right checksum, as no torn write has it.
TEST(PrefixBlock, ImpossibleFieldsAreRefused) {
  const std::string good = encode_manifest(rows_block(key_of(3), 0, counted_tokens(9)));
  constexpr size_t kFields = 8 + 4 * 4 + 3 * 32;  // magic, four words, three keys
  const auto with = [&](size_t at, uint64_t value, size_t bytes = 8) {
    std::string text = good;
    std::memcpy(text.data() + at, &value, bytes);
    return sealed(text);
  };
  ASSERT_TRUE(decode(sealed(good)));
  EXPECT_FALSE(decode(with(16, 7, 4)));           // kind
  EXPECT_FALSE(decode(with(20, UINT32_MAX, 4)));  // the name's bytes
  for (const uint64_t value : {uint64_t{1}, uint64_t{1} << 40, UINT64_MAX}) EXPECT_FALSE(decode(with(kFields, value)));
  for (const uint64_t value : {uint64_t{0}, uint64_t{513}, UINT64_MAX}) EXPECT_FALSE(decode(with(kFields + 8, value)));
  for (const uint64_t value : {uint64_t{0}, uint64_t{4095}, uint64_t{1} << 60}) {
    EXPECT_FALSE(decode(with(kFields + 16, value)));  // a part's bytes
  }
  for (const uint64_t value : {uint64_t{0}, uint64_t{1} << 61, UINT64_MAX}) {
    EXPECT_FALSE(decode(with(kFields + 24, value)));  // parts
    EXPECT_FALSE(decode(with(kFields + 32, value)));  // tokens
  }
  EXPECT_FALSE(decode(with(kFields + 40 + 7, 5, 4)));  // the first token: the key is another's then
  EXPECT_FALSE(decode(with(24, 5)));                   // the key
}

TEST(PrefixBlock, ANewerFormatIsRefusedByName) {
  std::string text = encode_manifest(rows_block(key_of(3), 0, counted_tokens(9)));
  const uint32_t version[2] = {kPrefixFormat + 1, ~(kPrefixFormat + 1)};
  std::memcpy(text.data() + 8, version, sizeof version);
  std::string wrong;
  try {
    decode_manifest(text, "some/where.seg", &wrong);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kStorage);
    EXPECT_NE(std::string(error.what()).find("some/where.seg: is of format 3"), std::string::npos) << error.what();
  }
}

TEST(PrefixBlock, NoiseIsNoManifest) {
  std::mt19937 random(5);
  const std::string good = encode_manifest(rows_block(key_of(3), 0, counted_tokens(9)));
  for (int i = 0; i < 2000; ++i) {
    std::string text = good.substr(0, 16);
    text.resize(16 + random() % 300);
    for (size_t at = 16; at < text.size(); ++at) text[at] = static_cast<char>(random());
    EXPECT_FALSE(decode(i % 2 == 0 || text.size() < 24 ? text : sealed(text)));
  }
}

}  // namespace
}  // namespace headrace
