#include "runtime/prefix/run.h"

#include <algorithm>
#include <set>
#include <utility>

#include "offload/host/clock.h"
#include "runtime/base/unsigned.h"

namespace headrace {
namespace {

constexpr int kLookMs = 100;

uint64_t draft_part_bytes(const DraftNeeds& draft, int64_t segment) {
  return whole_pages(u(segment_range(segment).rows) * draft.row_bytes);
}

struct PlaneRows {
  int64_t capacity, rows;  // of a segment; of them, those that are saved
};

// K or V of a segment, after the planes that the source has: its values, then its parameters (kernels/rows/op.h).
void add_plane(const RowShape& shape, DType type, const PlaneRows& plane, PrefixSaver::Source* source) {
  uint64_t begin = 0;
  for (const PrefixSaver::Source::Elements& before : source->elements) begin += before.bytes;
  const auto add = [&](DType of, uint64_t row_bytes) {
    if (row_bytes == 0) return;
    const uint64_t stride = u(plane.capacity) * row_bytes, end = begin + u(shape.kv_heads) * stride;
    source->elements.push_back({.type = of, .bytes = end - begin});
    if (plane.rows < plane.capacity) {
      source->runs.push_back({.begin = begin, .end = end, .stride = stride, .bytes = u(plane.rows) * row_bytes});
    }
    begin = end;
  };
  add(type, row_value_bytes(type, shape.head_dim));
  add(DType::kF16, row_parameter_bytes(type, shape.head_dim));
}

}  // namespace

PrefixRun::PrefixRun(PrefixStore& store, const PrefixRunSetup& setup)
    : store_(store), setup_(setup), prompt_(setup.prompt.begin(), setup.prompt.end()) {
  use_.asked = true;
  note_damage();
  find();
  if (store_.writes()) choose_blocks();
}

PrefixRun::~PrefixRun() { abandon(); }

// ---- what is there, and what is to be -------------------------------------------------------------------------------

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
  if (match_.rows < kMinSavedRows) match_ = {};
  read_ = match_.blocks;
  for (size_t i = 0; i < match_.blocks.size(); ++i) {
    if (draft_needs(static_cast<int64_t>(i), setup_.draft.first_row)) {
      read_.push_back(draft_key(match_.blocks[i], setup_.draft.identity));
    }
  }
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
  try {
    fit_blocks();
  } catch (const Error& error) {
    blocks_.clear();
    use_.notes.push_back(str("prefix cache: this prompt is not saved: ", error.info().where, ": ", error.info().what));
  }
}

void PrefixRun::add_rows_blocks() {
  const int64_t kept = static_cast<int64_t>(prompt_.size()) / setup_.unit * setup_.unit;
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
    parent = key;
  }
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
  const uint64_t reads = match_.blocks.size() * u(setup_.shape.layers) + read_.size() - match_.blocks.size();
  return (reads > 0 ? PrefixLoader::ring_bytes(largest_read, reads) : 0) +
         (blocks_.empty() ? 0 : PrefixSaver::pinned_bytes(backend, largest_part));
}

// ---- prefill --------------------------------------------------------------------------------------------------------

void PrefixRun::lose(const PrefixKey& key, const std::string& why) {
  damaged_ = true;
  use_.notes.push_back("prefix cache: " + why + "; computed again from there on");
  store_.drop(std::span(&key, 1));
}

// The draft's first, then layer by layer.
std::vector<PrefixLoader::Read> PrefixRun::open_blocks() {
  std::vector<PrefixLoader::Read> reads;
  files_.reserve(read_.size());  // reads hold pointers to its elements
  for (const PrefixKey& key : read_) {
    try {
      files_.push_back(store_.open_data(key));
    } catch (const Error& error) {
      lose(key, str(error.info().where, ": ", error.info().what));
      return {};
    }
  }
  const auto add = [&](size_t block, size_t part) {
    const PrefixBlock& from = store_.index().find(read_[block])->block;
    reads.push_back({.file = &files_[block],
                     .offset = part * from.part_bytes,
                     .bytes = from.part_bytes,
                     .checksum = from.checksums[part],
                     .block = block});
    use_.read_bytes += from.part_bytes;
  };
  for (size_t block = match_.blocks.size(); block < read_.size(); ++block) add(block, 0);
  for (size_t layer = 0; layer < u(setup_.shape.layers); ++layer) {
    for (size_t block = 0; block < match_.blocks.size(); ++block) add(block, layer);
  }
  return reads;
}

void PrefixRun::begin(Device& device) {
  on_gpu_ = device.backend() == Backend::kCuda;
  if (rows() > 0) {
    std::vector<PrefixLoader::Read> reads = open_blocks();
    in_ = device.make_stream("prefix in", StreamRole::kCopy);
    arrived_ = device.make_event();
    if (!damaged_) loader_ = std::make_unique<PrefixLoader>(device, std::move(reads));
  }
  if (!blocks_.empty() && !damaged_ && make_room()) saver_ = std::make_unique<PrefixSaver>(device, store_, blocks_);
}

const std::byte* PrefixRun::next_part() {
  if (damaged_) return nullptr;
  const std::byte* const data = loader_->next();
  if (data == nullptr) lose(read_[loader_->current().block], loader_->failure());
  return data;
}

bool PrefixRun::restore_draft(std::span<const PromptStates> states, Stream& compute) {
  for (size_t i = 0; i < match_.blocks.size(); ++i) {
    const auto segment = static_cast<int64_t>(i);
    if (!draft_needs(segment, setup_.draft.first_row)) continue;
    const std::byte* const data = next_part();
    if (data == nullptr) return false;
    const SegmentRange range = segment_range(segment);
    for (const PromptStates& to : states) {
      const int64_t first = std::max(to.first, range.begin);
      const int64_t end = std::min({to.first + to.rows, range.end(), rows()});
      if (first >= end) continue;
      in_->copy(to.data + u(first - to.first) * setup_.draft.row_bytes,
                data + u(first - range.begin) * setup_.draft.row_bytes, u(end - first) * setup_.draft.row_bytes,
                Link::kHostToDevice, "a draft's saved rows");
    }
    loader_->done(*in_);
  }
  if (in_) {
    in_->record(*arrived_);
    compute.wait(*arrived_);
  }
  return !damaged_;
}

bool PrefixRun::restore_layer(int64_t layer, std::byte* buffer, const Event& free, Stream& compute) {
  if (rows() == 0) return true;
  in_->wait(free);
  for (size_t i = 0; i < match_.blocks.size(); ++i) {
    const std::byte* const data = next_part();
    if (data == nullptr) return false;
    const auto segment = static_cast<int64_t>(i);
    in_->copy(buffer + segments_bytes(setup_.shape, 0, segment), data,
              segments_bytes(setup_.shape, segment, segment + 1), Link::kHostToDevice, {"saved, layer", layer});
    loader_->done(*in_);
  }
  in_->record(*arrived_);
  compute.wait(*arrived_);
  return true;
}

void PrefixRun::end_reads() noexcept {
  if (in_) drain(*in_);
  loader_.reset();
  files_.clear();
}

void PrefixRun::layer_stored(int64_t layer, KvCache& cache, const std::byte* built, std::shared_ptr<Event> stored) {
  ++layers_stored_;
  if (!saver_) return;
  std::vector<PrefixSaver::Source> sources, at_once;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const PrefixBlock& block = blocks_[i];
    if (block.kind != PrefixBlockKind::kRows) continue;
    const int64_t segment = segment_of(block.first_row), capacity = segment_range(segment).rows;
    const KvCache::StoredSegment from = cache.stored_segment(layer, segment, static_cast<int64_t>(prompt_.size()));
    PrefixSaver::Source source{
        .block = i, .part = u(layer), .data = from.data, .on_device = from.on_device, .runs = {}, .elements = {}};
    add_plane(setup_.shape, setup_.shape.k_type, {.capacity = capacity, .rows = block.rows}, &source);
    add_plane(setup_.shape, setup_.shape.v_type, {.capacity = capacity, .rows = block.rows}, &source);
    if (source.data != nullptr) {
      sources.push_back(std::move(source));
      continue;
    }
    source.data = built + segments_bytes(setup_.shape, 0, segment);
    source.on_device = on_gpu_;
    at_once.push_back(std::move(source));
  }
  saver_->save(stored, sources);
  if (!at_once.empty()) saver_->save_now(std::move(stored), at_once);
}

void PrefixRun::draft_made(std::span<const PromptStates> states, std::shared_ptr<Event> ready) {
  if (!saver_) return;
  std::vector<PrefixSaver::Source> sources;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const PrefixBlock& block = blocks_[i];
    if (block.kind != PrefixBlockKind::kDraft) continue;
    const auto from = std::find_if(states.begin(), states.end(), [&](const PromptStates& s) {
      return s.first <= block.first_row && block.first_row + block.rows <= s.first + s.rows;
    });
    CHECK(from != states.end(), "rows ", block.first_row, " + ", block.rows);
    sources.push_back({.block = i,
                       .part = 0,
                       .data = from->data + u(block.first_row - from->first) * setup_.draft.row_bytes,
                       .on_device = on_gpu_,
                       .runs = {{.begin = 0,
                                 .end = block.part_bytes,
                                 .stride = block.part_bytes,
                                 .bytes = u(block.rows) * setup_.draft.row_bytes}},
                       .elements = {{setup_.draft.type, u(block.rows) * setup_.draft.row_bytes}}});
  }
  if (sources.empty()) return;
  saver_->save_now(std::move(ready), sources);
}

// ---- the end --------------------------------------------------------------------------------------------------------

void PrefixRun::abandon() noexcept {
  end_reads();
  saver_.reset();
}

void PrefixRun::finish(Progress* progress, const std::atomic<bool>* interrupt, PrefixUse* use) {
  const HostClock::time_point start = HostClock::now();
  end_reads();
  if (saver_ && layers_stored_ == setup_.shape.layers && !damaged_) {
    uint64_t written = 0;
    if (progress) progress->begin("saving the prefix", "bytes", static_cast<int64_t>(saver_->bytes()));
    while (!saver_->wait_some(kLookMs, &written) && !(interrupt != nullptr && interrupt->load())) {
      if (progress) progress->update(static_cast<int64_t>(written));
    }
    if (progress) progress->end();
    for (const PrefixBlock& block : saver_->saved()) {
      store_.add(block);
      use_.saved_bytes += block.data_bytes();
    }
    if (const std::optional<int64_t> from = saver_->not_finite_from()) {
      use_.notes.push_back(
          str("prefix cache: the tokens from ", *from, " on are not saved: their keys or values hold NaN or infinity"));
    }
    if (const std::string failure = saver_->failure(); !failure.empty()) {
      use_.notes.push_back("prefix cache: this prompt is not saved: " + failure);
    }
  }
  saver_.reset();
  if (const uint64_t gone = damaged_ ? 0 : store_.keep_to_limit(); gone > 0) {
    use_.notes.push_back(str("prefix cache: ", format_bytes(gone),
                             " of the least recently used prefixes were removed: ", store_.folder(), " is limited to ",
                             format_bytes(store_.limit_bytes())));
  }
  use_.rows = use_.saved_rows = damaged_ ? 0 : rows();
  for (const PrefixKey& key : chain_) {
    const PrefixEntry* const entry = store_.index().find(key);
    if (entry == nullptr) break;
    use_.saved_rows = std::max(use_.saved_rows, entry->block.first_row + entry->block.rows);
  }
  use_.save_wait_ms = ms_since(start);
  use_.notes.insert(use_.notes.begin(), use->notes.begin(), use->notes.end());
  use_.restarts = use->restarts + (damaged_ ? 1 : 0);
  use_.read_bytes += use->read_bytes;
  *use = use_;
}

}  // namespace headrace
