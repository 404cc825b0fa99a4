// The saved blocks: a forest of prefixes, the search for the longest match of a prompt, and the order of eviction.
// Pure; owns its entries. Thread: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "runtime/prefix/block.h"

namespace headrace {

struct PrefixEntry {
  PrefixBlock block;
  uint64_t bytes = 0;   // on disk, manifest and data
  int64_t used_ns = 0;  // time of saving or last use
};

// The saved beginning of a prompt: blocks of rows from row 0 on, each the parent of the next. `rows` may exclude some
// rows of the last.
struct PrefixMatch {
  std::vector<PrefixKey> blocks;
  int64_t rows = 0;

  // Shortens it to at most `most` rows, a multiple of `unit`.
  void cut(int64_t most, int64_t unit);
};

class PrefixIndex {
 public:
  void add(PrefixEntry entry);  // replaces an entry with the same key
  void remove(const PrefixKey& key);
  const PrefixEntry* find(const PrefixKey& key) const;
  void touch(const PrefixKey& key, int64_t used_ns);
  const std::map<PrefixKey, PrefixEntry>& entries() const { return entries_; }
  uint64_t bytes() const { return bytes_; }

  // The longest saved beginning of `tokens` without the last token, in multiples of `unit`.
  PrefixMatch match(const PrefixKey& root, std::span<const int32_t> tokens, int64_t unit) const;
  // Shortens a match to the part with all of a draft's data: rows from `first` on and, unless first is 0, the first
  // segment. A segment without its draft block is computed again, with all after it.
  void cut_for_draft(const PrefixKey& draft_identity, int64_t first, int64_t unit, PrefixMatch* match) const;

  // Shortens a match of `tokens` to the last row, a multiple of `unit`, behind which the recurrent states are saved,
  // and returns the block that has them. None: there is none, and the match is empty.
  std::optional<PrefixKey> cut_to_states(std::span<const int32_t> tokens, int64_t unit, PrefixMatch* match) const;

  // The block, its descendants, their draft blocks and their states; children before parents.
  std::vector<PrefixKey> with_descendants(const PrefixKey& key) const;
  // Blocks without a path from a root.
  std::vector<PrefixKey> orphans() const;
  // What to evict, in this order, so that at most `limit_bytes` remain: least recently used prompts first, each from
  // its end, so that what remains can be used; but never a block with a child that stays, nor one of `keep`. May free
  // less than requested.
  std::vector<PrefixKey> to_drop(uint64_t limit_bytes, const std::set<PrefixKey>& keep) const;

 private:
  bool is_root_block(const PrefixEntry& entry) const;
  // Of each block: of rows, the last use of one that stands on it; states and draft blocks are used with their rows
  // unless they are older.
  std::map<PrefixKey, int64_t> last_uses() const;

  std::map<PrefixKey, PrefixEntry> entries_;
  std::multimap<PrefixKey, PrefixKey> children_;  // parent -> key
  uint64_t bytes_ = 0;
};

}  // namespace headrace
