// A saved block of a prefix and its manifest (docs/design.md, section 9). A block of rows holds the rows of one prompt
// in one segment of cache/layout.h, of all layers, in one data file: part l is layer l's segment with its memory
// layout, in whole pages, with a checksum; low-bit rows have their parameters with them. A block for a draft holds the
// draft's data for the same rows, in one part. A block of states holds the recurrent states behind the same rows, a
// part for each layer that has one. Pure values; any thread.
//
// A block is named by its content: SHA-256 of the previous block and of its tokens. The parent of the first block is
// the identity of everything that decides a row's bits. So prompts with a common beginning share its blocks, and blocks
// of other models are never found. A 64-bit hash would suffice to find blocks, but a collision must not change the
// text; a look-up also compares the tokens.
//
// A manifest is binary and little-endian: magic, version and its complement, the fields below, the model's name,
// tokens, checksums, and a checksum of all that. A version above kPrefixFormat is rejected by name; any other deviation
// counts as damage. No size is used before it is checked. Blocks of states have version 2 and all others version 1, so
// that a program which knows no states says so.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/layout.h"

namespace headrace {

constexpr uint32_t kPrefixFormat = 2;

using PrefixKey = std::array<uint8_t, 32>;  // a SHA-256

enum class PrefixBlockKind : uint32_t { kRows = 0, kDraft = 1, kStates = 2 };

struct PrefixBlock {
  PrefixBlockKind kind = PrefixBlockKind::kRows;
  PrefixKey key{}, parent{};  // of a block for a draft or of states: the parent is its block of rows
  PrefixKey identity{};       // of what made the rows; in a draft's block: of the draft
  std::string model;          // the model's name, for people
  int64_t first_row = 0, rows = 0;
  uint64_t part_bytes = 0;          // a multiple of kPageBytes
  std::vector<uint64_t> checksums;  // [parts], XXH3 of each
  std::vector<int32_t> tokens{};    // [rows]; empty but in a block of rows

  uint64_t data_bytes() const { return part_bytes * checksums.size(); }
  int64_t end_row() const { return first_row + rows; }
};

PrefixKey prefix_root(const PrefixKey& identity);
PrefixKey rows_key(const PrefixKey& parent, std::span<const int32_t> tokens);
PrefixKey draft_key(const PrefixKey& rows, const PrefixKey& draft_identity);
PrefixKey states_key(const PrefixKey& rows);
std::string key_text(const PrefixKey& key);                 // 64 lower-case digits
std::optional<PrefixKey> parse_key(std::string_view text);  // none for any other text

std::string encode_manifest(const PrefixBlock& block);
uint64_t file_bytes(const PrefixBlock& block);  // of data and manifest
// None, and the reason in `wrong`, for anything that encode_manifest() did not write. Throws Error(kStorage) that names
// `path` for a manifest of a newer format.
std::optional<PrefixBlock> decode_manifest(std::string_view bytes, const std::string& path, std::string* wrong);

}  // namespace headrace
