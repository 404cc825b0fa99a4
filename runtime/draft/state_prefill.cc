// Prefill of drafts that read the target's states. Such a draft has a single layer, so K and V of a prompt row need
// only the row's feature and the next token's embedding, not attention; with a window only the last rows' features are
// needed. Features are made as the target's layers are reached, so no buffer holds several states per row.
#include <algorithm>

#include "runtime/draft/state_draft.h"

namespace headrace {

int64_t StateDraft::first_prompt_row() const {
  return shape_.chosen_rows > 0 ? 0 : shape_.first_kept(options_.run.prompt_tokens - 1);
}

// A saved prefix has whole segments.
int64_t StateDraft::first_feature_row() const {
  return options_.run.saves ? draft_states_from(first_prompt_row()) : first_prompt_row();
}

int64_t StateDraft::sink_features() const {
  if (first_feature_row() == 0) return 0;
  return options_.run.saves ? segment_range(0).rows : kDraftSinkRows;
}

int64_t StateDraft::most_sink_features() const {
  if (!options_.shares() || !shape_.windowed()) return sink_features();
  return options_.run.saves ? segment_range(0).rows : kDraftSinkRows;
}

int64_t StateDraft::prompt_group() const {
  const int64_t kept = most_prompt_rows(options_, shape_, first_prompt_row());
  return std::min(padded(std::max(kept, most_sink_features())), kDraftPrefillGroupRows);
}

void StateDraft::carve_prefill(Buffers* buffers) {
  const int64_t group = prompt_group(), hidden = decoder_.hidden;
  const auto rows_of = [&](int64_t rows, int64_t width) { return buffers->prefill.take_bytes(bytes(rows * width)); };
  carve_prompt(kDraftSinkRows + most_prompt_rows(options_, shape_, first_prompt_row()), buffers);
  if (keeps_prompt_features()) {
    const int64_t features = most_prompt_rows(options_, shape_, first_feature_row(), 2 * kLargeSegmentRows);
    prefill_.sink_features = rows_of(padded(std::max(most_sink_features(), kDraftSinkRows)), hidden);
    prefill_.features = rows_of(padded(features), hidden);
  }
  prefill_.room = rows_of(group, prompt_room());
  prefill_.joined = {rows_of(group, hidden), rows_of(group, 2 * hidden)};
  prefill_.layer.qkv = rows_of(group, decoder_.layers.front().attention().in_width());
}

std::vector<PromptStates> StateDraft::prompt_states() {
  if (!keeps_prompt_features()) return {};
  const int64_t first = first_feature_row();
  std::vector<PromptStates> states = {
      {static_cast<std::byte*>(prefill_.features), first, options_.run.prompt_tokens - first}};
  if (first > 0) states.push_back({static_cast<std::byte*>(prefill_.sink_features), 0, sink_features()});
  return states;
}

void StateDraft::prefill_layer(const LayerInput& input) {
  if (!reads(input.layer)) return;
  for (const PromptStates& to : prompt_states()) project_prompt(input, to);
}

// Rows before the input's first are already there. Groups end at absolute multiples, so a row is rounded as in a fresh
// run wherever the saved rows end. After rows that an earlier run has left, which may end anywhere, the multiples are
// shifted: on a GPU a product writes whole groups of 64 rows, the next rows' features among them.
void StateDraft::project_prompt(const LayerInput& input, const PromptStates& to) {
  const int64_t end = std::min(to.first + to.rows, input.first + input.rows);
  const int64_t first = std::max(to.first, input.first), shift = first % kPrefixTile;
  for (int64_t row = first; row < end;) {
    const int64_t count = std::min(kDraftPrefillGroupRows - (row - shift) % kDraftPrefillGroupRows, end - row);
    project(prompt_pass({}, nullptr, count), input, row - input.first,
            to.data + bytes((row - to.first) * decoder_.hidden), prefill_.room);
    row += count;
  }
}

const void* StateDraft::prompt_features(int64_t first, int64_t rows) {
  const int64_t begin = first_feature_row(), sinks = sink_features();
  if (first < begin) {
    CHECK(first + rows <= sinks, "rows ", first, " + ", rows, " of ", sinks);
    return static_cast<const std::byte*>(prefill_.sink_features) + bytes(first * decoder_.hidden);
  }
  return static_cast<const std::byte*>(prefill_.features) + bytes((first - begin) * decoder_.hidden);
}

// Row i joins feature i with token i + 1; the last row needs the token that the target samples after the prompt.
bool StateDraft::finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) {
  const int64_t rows = static_cast<int64_t>(prompt.size()) - 1, first = std::max(first_prompt_row(), resumed_rows_);
  CHECK(rows + 1 == options_.run.prompt_tokens);
  const int64_t sinks = first > 0 && resumed_rows_ == 0 ? kDraftSinkRows : 0, kept = rows - first;
  upload_prompt(prompt.subspan(1), sinks, first, kept);
  if (resumed_rows_ > 0 && first > 0) cache_->keep_first_rows(*compute_);
  if (sinks > 0) {
    const Pass pass = prompt_pass(prefill_.layer, prompt_.positions, sinks);
    join(pass, prompt_.tokens, prompt_features(0, sinks), prefill_.joined);
    rotate_rows(pass, layer_, 0, sinks, cache_->sinks(0));
  }
  for (int64_t row = 0; row < kept; row += kDraftPrefillGroupRows) {
    const int64_t count = std::min(kDraftPrefillGroupRows, kept - row);
    const Pass pass = prompt_pass(prefill_.layer, prompt_.positions + sinks + row, count);
    join(pass, prompt_.tokens + sinks + row, prompt_features(first + row, count), prefill_.joined);
    rotate_into_ring(pass, layer_, first + row);
  }
  compute_->copy(work_.pass_features, prompt_features(rows, 1), bytes(decoder_.hidden), Link::kWithinDevice);
  stable_features_.assign(1, 0);
  end_prefill(rows, sinks > 0);
  prefilled_ = true;
  return true;
}

// ---- from run to run ------------------------------------------------------------------------------------------------

namespace {

struct KeptRows : KeptDraft {
  explicit KeptRows(DraftCache cache_of_run) : cache(std::move(cache_of_run)) {}
  DraftCache cache;
};

}  // namespace

// The rows of the tokens that were accepted last are computed now, while their features are there. Some are not: those
// of a step before the last one if that one, at the end of the run, did not ask for a tree; and those of earlier rows,
// the last of which keeps the token that followed it here where the next prompt parts from the text earlier. A few rows
// of many are then what the ring has in their place, zeros or rows of another text: a draft guesses a little worse. So
// are more of them, up to a window, where the next prompt goes back by more rows than a windowed draft's ring keeps.
std::unique_ptr<KeptDraft> StateDraft::keep(int32_t next, int64_t position) {
  if (!options_.shares() || !cache_) return nullptr;
  if (prefilled_ && cache_->rows() < position) {
    const auto left = static_cast<size_t>(position - cache_->rows());
    if (left <= stable_features_.size()) {
      stable_features_.resize(left);
      stable_tokens_.resize(left - 1);
      catch_up(next, position);
    }
    cache_->continue_to(position, *compute_);
    compute_->synchronize();
  }
  if (cache_->rows() < kDraftSinkRows) return nullptr;
  return std::make_unique<KeptRows>(*std::move(cache_));
}

void StateDraft::resume(std::unique_ptr<KeptDraft> kept, int64_t rows) {
  auto* const mine = dynamic_cast<KeptRows*>(kept.get());
  if (mine == nullptr || mine->cache.rows() < rows) return;
  kept_cache_.emplace(std::move(mine->cache));
  kept_cache_->go_back(rows);
  resumed_rows_ = rows;
}

}  // namespace headrace
