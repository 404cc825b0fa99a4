// Which saved blocks there are: a forest of prefixes, the search for the longest that a prompt begins with, and who
// goes first when there is no room. Pure; owns its entries. Thread: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "runtime/prefix/block.h"

namespace headrace {

struct PrefixEntry {
  PrefixBlock block;
  uint64_t bytes = 0;   // on disk, manifest and data
  int64_t used_ns = 0;  // when it was saved or last served a prompt
};

// A prompt's beginning, saved: blocks of rows from row 0 on, each the parent of the next. Of the last, `rows` may leave
// some out.
struct PrefixMatch {
  std::vector<PrefixKey> blocks;
  int64_t rows = 0;

  // Shortens it to `most` rows, and those to a multiple of `unit`.
  void cut(int64_t most, int64_t unit);
};

class PrefixIndex {
 public:
  void add(PrefixEntry entry);  // in the place of one with the same key
  void remove(const PrefixKey& key);
  void clear();
  const PrefixEntry* find(const PrefixKey& key) const;
  void touch(const PrefixKey& key, int64_t used_ns);
  const std::map<PrefixKey, PrefixEntry>& entries() const { return entries_; }
  uint64_t bytes() const { return bytes_; }

  // The most of `tokens` but the last one that is saved, in multiples of `unit`.
  PrefixMatch match(const PrefixKey& root, std::span<const int32_t> tokens, int64_t unit) const;
  // Shortens a match to where a draft finds all that it needs: rows from `first` on and, unless first is 0, the first
  // segment. A segment without its block is computed again, and all after it.
  void cut_for_draft(const PrefixKey& draft_identity, int64_t first, int64_t unit, PrefixMatch* match) const;

  // The block, all that continues it, and what drafts have of them; children before their parents.
  std::vector<PrefixKey> with_descendants(const PrefixKey& key) const;
  // Blocks that no path from a root leads to.
  std::vector<PrefixKey> orphans() const;
  // What must go, in this order, for at most `limit_bytes` to stay: the least recently used first, but none that has a
  // child that stays, and none of `keep`. Fewer bytes may go than wanted.
  std::vector<PrefixKey> to_drop(uint64_t limit_bytes, const std::set<PrefixKey>& keep) const;

 private:
  bool is_root_block(const PrefixEntry& entry) const;

  std::map<PrefixKey, PrefixEntry> entries_;
  std::multimap<PrefixKey, PrefixKey> children_;  // parent -> key
  uint64_t bytes_ = 0;
};

}  // namespace headrace
