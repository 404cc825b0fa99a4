#include "runtime/prefix/index.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

namespace headrace {

void PrefixMatch::cut(int64_t most, int64_t unit) {
  rows = std::min(rows, most) / unit * unit;
  blocks.resize(std::min(blocks.size(), static_cast<size_t>(segments_for(rows))));
}

void PrefixIndex::add(PrefixEntry entry) {
  const PrefixKey key = entry.block.key;
  remove(key);
  children_.emplace(entry.block.parent, key);
  bytes_ += entry.bytes;
  entries_.emplace(key, std::move(entry));
}

void PrefixIndex::remove(const PrefixKey& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  const auto [begin, end] = children_.equal_range(it->second.block.parent);
  children_.erase(std::find_if(begin, end, [&](const auto& child) { return child.second == key; }));
  bytes_ -= it->second.bytes;
  entries_.erase(it);
}

const PrefixEntry* PrefixIndex::find(const PrefixKey& key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? nullptr : &it->second;
}

void PrefixIndex::touch(const PrefixKey& key, int64_t used_ns) {
  const auto it = entries_.find(key);
  if (it != entries_.end()) it->second.used_ns = used_ns;
}

PrefixMatch PrefixIndex::match(const PrefixKey& root, std::span<const int32_t> tokens, int64_t unit) const {
  PrefixMatch match;
  PrefixKey parent = root;
  for (bool whole = true; whole && match.rows < static_cast<int64_t>(tokens.size());) {
    const std::span<const int32_t> rest = tokens.subspan(static_cast<size_t>(match.rows));
    const PrefixBlock* best = nullptr;
    size_t common = 0;
    const auto [begin, end] = children_.equal_range(parent);
    for (auto it = begin; it != end; ++it) {
      const PrefixBlock& block = entries_.at(it->second).block;
      if (block.kind != PrefixBlockKind::kRows || block.first_row != match.rows) continue;
      const size_t most = std::min(rest.size(), block.tokens.size());
      const size_t same = static_cast<size_t>(
          std::mismatch(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(most), block.tokens.begin()).first -
          rest.begin());
      if (same > common) common = same, best = &block;
    }
    if (best == nullptr) break;
    match.blocks.push_back(best->key);
    match.rows += static_cast<int64_t>(common);
    parent = best->key;
    whole = static_cast<int64_t>(common) == segment_range(segment_of(best->first_row)).rows;
  }
  match.cut(static_cast<int64_t>(tokens.size()) - 1, unit);
  return match;
}

void PrefixIndex::cut_for_draft(const PrefixKey& draft_identity, int64_t first, int64_t unit,
                                PrefixMatch* match) const {
  for (size_t i = 0; i < match->blocks.size(); ++i) {
    const SegmentRange range = segment_range(static_cast<int64_t>(i));
    const bool needed = i == 0 || range.end() > first;
    const PrefixEntry* const block = needed ? find(draft_key(match->blocks[i], draft_identity)) : nullptr;
    const int64_t rows = std::min(match->rows, range.end()) - range.begin;
    if (!needed || (block != nullptr && block->block.rows >= rows)) continue;
    return match->cut(range.begin, unit);
  }
}

// States belong to the block of rows that ends where they are. That need not be the block of the match, which may go on
// further; the rows are the same.
std::optional<PrefixKey> PrefixIndex::cut_to_states(std::span<const int32_t> tokens, int64_t unit,
                                                    PrefixMatch* match) const {
  for (size_t i = match->blocks.size(); i-- > 0;) {
    const SegmentRange range = segment_range(static_cast<int64_t>(i));
    std::optional<PrefixKey> found;
    int64_t rows = 0;
    const auto [begin, end] = children_.equal_range(entries_.at(match->blocks[i]).block.parent);
    for (auto it = begin; it != end; ++it) {
      const PrefixBlock& block = entries_.at(it->second).block;
      if (block.kind != PrefixBlockKind::kRows || block.first_row != range.begin) continue;
      if (block.end_row() > match->rows || block.end_row() <= rows || block.end_row() % unit != 0) continue;
      if (!std::equal(block.tokens.begin(), block.tokens.end(), tokens.begin() + range.begin)) continue;
      const PrefixKey states = states_key(block.key);
      if (find(states) != nullptr) found = states, rows = block.end_row();
    }
    if (!found) continue;
    match->cut(rows, unit);
    return found;
  }
  *match = {};
  return std::nullopt;
}

std::vector<PrefixKey> PrefixIndex::with_descendants(const PrefixKey& key) const {
  std::vector<PrefixKey> found = {key};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children_.equal_range(found[i]);
    for (auto it = begin; it != end; ++it) found.push_back(it->second);
  }
  std::reverse(found.begin(), found.end());
  return found;
}

bool PrefixIndex::is_root_block(const PrefixEntry& entry) const {
  return entry.block.kind == PrefixBlockKind::kRows && entry.block.first_row == 0 &&
         entry.block.parent == prefix_root(entry.block.identity);
}

std::vector<PrefixKey> PrefixIndex::orphans() const {
  std::set<PrefixKey> reached;
  for (const auto& [key, entry] : entries_) {
    if (!is_root_block(entry)) continue;
    for (const PrefixKey& one : with_descendants(key)) reached.insert(one);
  }
  std::vector<PrefixKey> lost;
  for (const auto& [key, entry] : entries_) {
    if (!reached.contains(key)) lost.push_back(key);
  }
  return lost;
}

std::map<PrefixKey, int64_t> PrefixIndex::last_uses() const {
  std::map<PrefixKey, int64_t> uses;
  for (const auto& [first, entry] : entries_) {
    if (entry.block.kind != PrefixBlockKind::kRows) continue;
    for (auto it = entries_.find(first); it != entries_.end(); it = entries_.find(it->second.block.parent)) {
      int64_t& use = uses.try_emplace(it->first, INT64_MIN).first->second;
      if (use >= entry.used_ns) break;
      use = entry.used_ns;
    }
  }
  for (const auto& [key, entry] : entries_) {
    const auto rows = entries_.find(entry.block.parent);
    const bool along = rows != entries_.end() && entry.used_ns >= rows->second.used_ns;
    uses.try_emplace(key, along ? uses[rows->first] : entry.used_ns);
  }
  return uses;
}

std::vector<PrefixKey> PrefixIndex::to_drop(uint64_t limit_bytes, const std::set<PrefixKey>& keep) const {
  const std::map<PrefixKey, int64_t> uses = last_uses();
  std::map<PrefixKey, size_t> staying;  // children of each
  for (const auto& [parent, key] : children_) ++staying[parent];
  std::set<std::tuple<int64_t, int64_t, PrefixKey>> leaves;  // by use, then from a prompt's end
  const auto add_leaf = [&](const PrefixKey& key, const PrefixEntry& entry) {
    leaves.emplace(uses.at(key), -entry.block.end_row(), key);
  };
  for (const auto& [key, entry] : entries_) {
    if (!staying.contains(key) && !keep.contains(key)) add_leaf(key, entry);
  }
  std::vector<PrefixKey> dropped;
  for (uint64_t bytes = bytes_; bytes > limit_bytes && !leaves.empty();) {
    const PrefixKey key = std::get<PrefixKey>(*leaves.begin());
    leaves.erase(leaves.begin());
    dropped.push_back(key);
    const PrefixEntry& entry = entries_.at(key);
    bytes -= entry.bytes;
    const auto parent = entries_.find(entry.block.parent);
    if (parent == entries_.end() || --staying[parent->first] > 0 || keep.contains(parent->first)) continue;
    add_leaf(parent->first, parent->second);
  }
  return dropped;
}

}  // namespace headrace
