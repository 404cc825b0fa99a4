// Pieces as the tests of saved prefixes make them. Header only.
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

inline std::vector<int32_t> counted_tokens(int64_t count, int32_t first = 100) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Rows [first_row, first_row + tokens) behind `parent`, of `parts` parts of a page.
inline PrefixPiece rows_piece(const PrefixKey& parent, int64_t first_row, const std::vector<int32_t>& tokens,
                              size_t parts = 2) {
  PrefixPiece piece;
  piece.key = rows_key(parent, tokens);
  piece.parent = parent;
  piece.identity = key_of(1);
  piece.model = "a model";
  piece.first_row = first_row;
  piece.rows = static_cast<int64_t>(tokens.size());
  piece.part_bytes = kPageBytes;
  piece.checksums.resize(parts);
  piece.tokens = tokens;
  return piece;
}

inline PrefixPiece draft_piece(const PrefixPiece& rows, const PrefixKey& identity) {
  PrefixPiece piece;
  piece.kind = PieceKind::kDraft;
  piece.key = draft_key(rows.key, identity);
  piece.parent = rows.key;
  piece.identity = identity;
  piece.first_row = rows.first_row;
  piece.rows = rows.rows;
  piece.part_bytes = kPageBytes;
  piece.checksums.resize(1);
  return piece;
}

// All pieces of a prompt, the last one cut short where the prompt is.
inline std::vector<PrefixPiece> pieces_of(const std::vector<int32_t>& prompt, const PrefixKey& identity = key_of(1)) {
  std::vector<PrefixPiece> pieces;
  PrefixKey parent = prefix_root(identity);
  for (int64_t segment = 0; segment < segments_for(static_cast<int64_t>(prompt.size())); ++segment) {
    const SegmentRange range = segment_range(segment);
    const auto begin = prompt.begin() + range.begin;
    const auto end = prompt.begin() + std::min(range.end(), static_cast<int64_t>(prompt.size()));
    pieces.push_back(rows_piece(parent, range.begin, std::vector<int32_t>(begin, end)));
    pieces.back().identity = identity;
    parent = pieces.back().key;
  }
  return pieces;
}

}  // namespace headrace::testing
