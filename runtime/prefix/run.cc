#include "runtime/prefix/run.h"

#include <algorithm>
#include <utility>

#include "offload/host/clock.h"
#include "runtime/base/unsigned.h"

namespace headrace {
namespace {

constexpr int kLookMs = 100;

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

// ---- prefill --------------------------------------------------------------------------------------------------------

void PrefixRun::lose(const PrefixKey& key, const std::string& why) {
  damaged_ = true;
  use_.notes.push_back("prefix cache: " + why + "; computed again from there on");
  store_.drop(std::span(&key, 1));
}

// The draft's and the states first, then layer by layer.
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
  for (size_t block = match_.blocks.size(); block < read_.size(); ++block) {
    const size_t parts = store_.index().find(read_[block])->block.checksums.size();
    for (size_t part = 0; part < parts; ++part) add(block, part);
  }
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

bool PrefixRun::restore_states(const TakeStates& take, Stream& compute) {
  if (rows() == 0) return !damaged_;
  for (int64_t layer = 0; layer < setup_.states.layers; ++layer) {
    const std::byte* const data = next_part();
    if (data == nullptr) return false;
    take(layer, data, *in_);
    loader_->done(*in_);
  }
  in_->record(*arrived_);
  compute.wait(*arrived_);
  return true;
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
    if (!setup_.shape.values_alone) {
      add_plane(setup_.shape, setup_.shape.k_type, {.capacity = capacity, .rows = block.rows}, &source);
    }
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

void PrefixRun::states_taken(int64_t layer, const StateSnapshots& snapshots, std::shared_ptr<Event> taken) {
  ++states_taken_;
  if (!saver_) return;
  std::vector<PrefixSaver::Source::Elements> elements;
  for (const auto& [type, bytes] : setup_.states.elements) elements.push_back({type, bytes});
  std::vector<PrefixSaver::Source> sources;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].kind != PrefixBlockKind::kStates) continue;
    sources.push_back({.block = i,
                       .part = u(layer),
                       .data = snapshots.part(blocks_[i].end_row(), layer),
                       .on_device = false,
                       .runs = {},
                       .elements = elements});
  }
  saver_->save(std::move(taken), sources);
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
  if (saver_ && layers_stored_ == setup_.shape.layers && states_taken_ == setup_.states.layers && !damaged_) {
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
    if (setup_.states.layers > 0 && store_.index().find(states_key(key)) == nullptr) continue;
    use_.saved_rows = std::max(use_.saved_rows, entry->block.end_row());
  }
  use_.save_wait_ms = ms_since(start);
  use_.notes.insert(use_.notes.begin(), use->notes.begin(), use->notes.end());
  use_.restarts = use->restarts + (damaged_ ? 1 : 0);
  use_.read_bytes += use->read_bytes;
  *use = use_;
}

}  // namespace headrace
