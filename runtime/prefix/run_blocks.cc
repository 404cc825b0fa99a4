// What a run finds of its prompt, and what it will save.
#include <algorithm>
#include <set>

#include "runtime/base/unsigned.h"
#include "runtime/prefix/run.h"

namespace headrace {
namespace {

uint64_t draft_part_bytes(const DraftNeeds& draft, int64_t segment) {
  return whole_pages(u(segment_range(segment).rows) * draft.row_bytes);
}

}  // namespace

bool PrefixRun::draft_needs(int64_t segment, int64_t first_row) const {
  return setup_.draft.row_bytes > 0 && (segment == 0 || segment_range(segment).end() > first_row);
}

void PrefixRun::find() {
  const PrefixIndex& index = store_.index();
  match_ = index.match(prefix_root(setup_.identity), prompt_, setup_.unit);
  note_other_prefill();
  match_.cut(static_cast<int64_t>(prompt_.size()) - setup_.computed, setup_.unit);
  if (setup_.draft.row_bytes > 0) {
    index.cut_for_draft(setup_.draft.identity, setup_.draft.first_row, setup_.unit, &match_);
  }
  std::optional<PrefixKey> states;
  if (setup_.states.layers > 0) states = index.cut_to_states(prompt_, setup_.unit, &match_);
  if (match_.rows < kMinSavedRows) match_ = {};
  read_ = match_.blocks;
  for (size_t i = 0; i < match_.blocks.size(); ++i) {
    if (draft_needs(static_cast<int64_t>(i), setup_.draft.first_row)) {
      read_.push_back(draft_key(match_.blocks[i], setup_.draft.identity));
    }
  }
  if (states) read_.push_back(*states);
  store_.used(read_);
}

void PrefixRun::note_damage() {
  const std::vector<PrefixStore::Damaged> damaged = store_.take_unreported();
  if (damaged.empty()) return;
  const PrefixStore::Damaged& first = damaged.front();
  std::string note = str("prefix cache: ", first.file, " ", first.what);
  if (damaged.size() > 1) note += str(", and ", damaged.size() - 1, " more like it");
  use_.notes.push_back(note + (first.unread ? "; left alone" : "; computed again"));
}

// If most of what is saved of the prompt is of the other arithmetic.
void PrefixRun::note_other_prefill() {
  if (*setup_.other.type == '\0') return;
  const int64_t rows = store_.index().match(prefix_root(setup_.other.identity), prompt_, 1).rows;
  if (rows < kMinSavedRows || rows / 2 < match_.rows) return;
  use_.notes.push_back(str("prefix cache: ", rows, " tokens of this prompt are saved by --prefill-type ",
                           setup_.other.type, ", which this run does not use"));
}

void PrefixRun::choose_blocks() {
  add_rows_blocks();
  add_draft_blocks();
  // Rows, then their states and draft block.
  std::stable_sort(blocks_.begin(), blocks_.end(),
                   [](const PrefixBlock& a, const PrefixBlock& b) { return a.first_row < b.first_row; });
  try {
    fit_blocks();
  } catch (const Error& error) {
    blocks_.clear();
    use_.notes.push_back(str("prefix cache: this prompt is not saved: ", error.info().where, ": ", error.info().what));
  }
}

void PrefixRun::add_rows_blocks() {
  int64_t kept = static_cast<int64_t>(prompt_.size()) / setup_.unit * setup_.unit;
  if (setup_.states.layers > 0) kept = setup_.states_at.empty() ? 0 : setup_.states_at.back();
  PrefixKey parent = prefix_root(setup_.identity);
  for (int64_t segment = 0; segment < segments_for(kept); ++segment) {
    const SegmentRange range = segment_range(segment);
    const int64_t rows = std::min(range.rows, kept - range.begin);
    // The rest of another prompt may include nearly all of these rows.
    if (rows < range.rows && rows - std::max<int64_t>(0, match_.rows - range.begin) < kMinSavedRows) break;
    const std::span<const int32_t> tokens = std::span(prompt_).subspan(u(range.begin), u(rows));
    const PrefixKey key = rows_key(parent, tokens);
    chain_.push_back(key);
    if (store_.index().find(key) == nullptr) {
      blocks_.push_back({.key = key,
                         .parent = parent,
                         .identity = setup_.identity,
                         .model = setup_.model,
                         .first_row = range.begin,
                         .rows = rows,
                         .part_bytes = segments_bytes(setup_.shape, segment, segment + 1),
                         .checksums = std::vector<uint64_t>(u(setup_.shape.layers)),
                         .tokens = {tokens.begin(), tokens.end()}});
    }
    add_states_block(key, {.begin = range.begin, .rows = rows});
    parent = key;
  }
}

// `range`: of the rows behind which they are. States before what is read are not made again.
void PrefixRun::add_states_block(const PrefixKey& rows, const SegmentRange& range) {
  const std::vector<int64_t>& at = setup_.states_at;
  const PrefixKey key = states_key(rows);
  if (range.end() <= match_.rows || std::find(at.begin(), at.end(), range.end()) == at.end()) return;
  if (store_.index().find(key) != nullptr) return;
  blocks_.push_back({.kind = PrefixBlockKind::kStates,
                     .key = key,
                     .parent = rows,
                     .identity = setup_.identity,
                     .model = setup_.model,
                     .first_row = range.begin,
                     .rows = range.rows,
                     .part_bytes = StateSnapshots::part_bytes(setup_.states),
                     .checksums = std::vector<uint64_t>(u(setup_.states.layers))});
}

std::vector<int64_t> PrefixRun::states_to_save() const {
  std::vector<int64_t> positions;
  for (const PrefixBlock& block : blocks_) {
    if (block.kind == PrefixBlockKind::kStates) positions.push_back(block.end_row());
  }
  return positions;
}

void PrefixRun::add_draft_blocks() {
  const int64_t from = draft_states_from(setup_.draft.first_row);
  for (size_t i = 0; i < chain_.size(); ++i) {
    const auto segment = static_cast<int64_t>(i);
    const PrefixKey key = draft_key(chain_[i], setup_.draft.identity);
    if (!draft_needs(segment, from) || store_.index().find(key) != nullptr) continue;
    const SegmentRange range = segment_range(segment);
    blocks_.push_back({.kind = PrefixBlockKind::kDraft,
                       .key = key,
                       .parent = chain_[i],
                       .identity = setup_.draft.identity,
                       .model = setup_.model,
                       .first_row = range.begin,
                       .rows = std::min(range.rows, static_cast<int64_t>(prompt_.size()) - range.begin),
                       .part_bytes = draft_part_bytes(setup_.draft, segment),
                       .checksums = {0}});
  }
}

uint64_t PrefixRun::bytes_to_save() const {
  uint64_t bytes = 0;
  for (const PrefixBlock& block : blocks_) bytes += file_bytes(block);
  return bytes;
}

std::set<PrefixKey> PrefixRun::to_keep() const {
  std::set<PrefixKey> keep(chain_.begin(), chain_.end());
  for (const PrefixKey& key : chain_) keep.insert(states_key(key));
  keep.insert(read_.begin(), read_.end());
  return keep;
}

// Leaves out, from the end, what does not fit beside this prompt's own blocks.
void PrefixRun::fit_blocks() {
  const std::set<PrefixKey> keep = to_keep();
  const size_t wanted = blocks_.size();
  uint64_t bytes = bytes_to_save();
  while (!blocks_.empty() && !store_.has_room(bytes, keep)) {
    bytes -= file_bytes(blocks_.back());
    blocks_.pop_back();
  }
  // Rows behind the last states serve no run.
  if (blocks_.size() < wanted && setup_.states.layers > 0) {
    const auto last = std::find_if(blocks_.rbegin(), blocks_.rend(),
                                   [](const PrefixBlock& block) { return block.kind == PrefixBlockKind::kStates; });
    const int64_t rows = last == blocks_.rend() ? 0 : last->end_row();
    std::erase_if(blocks_, [&](const PrefixBlock& block) { return block.first_row >= rows; });
  }
  if (blocks_.size() < wanted) {
    use_.notes.push_back(str("prefix cache: ", format_bytes(store_.limit_bytes()), " in ", store_.folder(), " hold ",
                             blocks_.empty() ? "nothing more" : "a part", " of this prompt"));
  }
}

bool PrefixRun::make_room() {
  std::string why = str("the disk of ", store_.folder(), " is fuller than it was");
  try {
    if (store_.make_room(bytes_to_save(), to_keep())) return true;
  } catch (const Error& error) {
    why = str(error.info().where, ": ", error.info().what);
  }
  use_.notes.push_back("prefix cache: this prompt is not saved: " + why);
  return false;
}

uint64_t PrefixRun::pinned_bytes(Backend backend) const {
  uint64_t largest_read = 0, largest_part = 0;
  for (size_t i = 0; i < read_.size(); ++i) {
    const PrefixEntry* const entry = store_.index().find(read_[i]);
    if (entry != nullptr) largest_read = std::max(largest_read, entry->block.part_bytes);
  }
  for (const PrefixBlock& block : blocks_) largest_part = std::max(largest_part, block.part_bytes);
  uint64_t reads = match_.blocks.size() * u(setup_.shape.layers) + read_.size() - match_.blocks.size();
  if (!read_.empty()) reads += u(setup_.states.layers);
  return (reads > 0 ? PrefixLoader::ring_bytes(largest_read, reads) : 0) +
         (blocks_.empty() ? 0 : PrefixSaver::pinned_bytes(backend, largest_part));
}

}  // namespace headrace
