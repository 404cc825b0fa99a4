// Blocks as the tests of saved prefixes make them. Header only.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/prefix/index.h"

namespace headrace::testing {

inline PrefixKey key_of(int number) {
  PrefixKey key{};
  key[0] = static_cast<uint8_t>(number);
  return key;
}

inline const PrefixKey kRoot = prefix_root(key_of(1));  // of what the blocks below belong to

inline std::vector<int32_t> counted_tokens(int64_t count, int32_t first = 100) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Rows [first_row, first_row + tokens) behind `parent`, of `parts` parts of a page.
inline PrefixBlock rows_block(const PrefixKey& parent, int64_t first_row, const std::vector<int32_t>& tokens,
                              size_t parts = 2) {
  PrefixBlock block;
  block.key = rows_key(parent, tokens);
  block.parent = parent;
  block.identity = key_of(1);
  block.model = "a model";
  block.first_row = first_row;
  block.rows = static_cast<int64_t>(tokens.size());
  block.part_bytes = kPageBytes;
  block.checksums.resize(parts);
  block.tokens = tokens;
  return block;
}

inline PrefixBlock draft_block(const PrefixBlock& rows, const PrefixKey& identity) {
  PrefixBlock block;
  block.kind = PrefixBlockKind::kDraft;
  block.key = draft_key(rows.key, identity);
  block.parent = rows.key;
  block.identity = identity;
  block.first_row = rows.first_row;
  block.rows = rows.rows;
  block.part_bytes = kPageBytes;
  block.checksums.resize(1);
  return block;
}

inline PrefixBlock states_block(const PrefixBlock& rows, size_t layers) {
  PrefixBlock block;
  block.kind = PrefixBlockKind::kStates;
  block.key = states_key(rows.key);
  block.parent = rows.key;
  block.identity = rows.identity;
  block.first_row = rows.first_row;
  block.rows = rows.rows;
  block.part_bytes = kPageBytes;
  block.checksums.resize(layers);
  return block;
}

// All blocks of a prompt, the last one cut short where the prompt is.
inline std::vector<PrefixBlock> blocks_of(const std::vector<int32_t>& prompt, const PrefixKey& identity = key_of(1)) {
  std::vector<PrefixBlock> blocks;
  PrefixKey parent = prefix_root(identity);
  for (int64_t segment = 0; segment < segments_for(static_cast<int64_t>(prompt.size())); ++segment) {
    const SegmentRange range = segment_range(segment);
    const auto begin = prompt.begin() + range.begin;
    const auto end = prompt.begin() + std::min(range.end(), static_cast<int64_t>(prompt.size()));
    blocks.push_back(rows_block(parent, range.begin, std::vector<int32_t>(begin, end)));
    blocks.back().identity = identity;
    parent = blocks.back().key;
  }
  return blocks;
}

}  // namespace headrace::testing
