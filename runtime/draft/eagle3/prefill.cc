// Prefill of the EAGLE-3 draft. It has a single layer, so K and V of a prompt row need only the row's feature and the
// next token's embedding, not attention; with a window only the last rows' features are needed. Features are
// accumulated as the target's layers are reached, so no buffer holds three states per row.
#include <algorithm>

#include "runtime/draft/eagle3/draft.h"

namespace headrace {

int64_t Eagle3Draft::first_prompt_row() const {
  return shape_.chosen_rows > 0 ? 0 : shape_.first_kept(options_.run.prompt_tokens - 1);
}

// A saved prefix has whole segments.
int64_t Eagle3Draft::first_feature_row() const {
  return options_.run.saves ? draft_states_from(first_prompt_row()) : first_prompt_row();
}

int64_t Eagle3Draft::sink_features() const {
  if (first_feature_row() == 0) return 0;
  return options_.run.saves ? segment_range(0).rows : kDraftSinkRows;
}

int64_t Eagle3Draft::most_sink_features() const {
  if (!options_.shares() || !shape_.windowed()) return sink_features();
  return options_.run.saves ? segment_range(0).rows : kDraftSinkRows;
}

void Eagle3Draft::carve_prefill(Buffers* buffers) {
  const int64_t kept = most_prompt_rows(options_, shape_, first_prompt_row()), sinks = most_sink_features();
  const int64_t features = most_prompt_rows(options_, shape_, first_feature_row(), 2 * kLargeSegmentRows);
  const int64_t group = std::min(padded(std::max(kept, sinks)), kDraftPrefillGroupRows);
  const auto rows_of = [&](int64_t rows, int64_t width) { return buffers->prefill.take_bytes(bytes(rows * width)); };
  carve_prompt(kDraftSinkRows + kept, buffers);
  prefill_.sink_features = rows_of(padded(std::max(sinks, kDraftSinkRows)), config_.hidden);
  prefill_.features = rows_of(padded(features), config_.hidden);
  prefill_.normed = config_.fc_norm ? rows_of(group, config_.target_hidden) : nullptr;
  prefill_.joined = {rows_of(group, config_.hidden), rows_of(group, 2 * config_.hidden)};
  prefill_.layer.qkv = rows_of(group, decoder_.layers.front().attention().qkv_width());
}

std::vector<PromptStates> Eagle3Draft::prompt_states() {
  const int64_t first = first_feature_row();
  std::vector<PromptStates> states = {
      {static_cast<std::byte*>(prefill_.features), first, options_.run.prompt_tokens - first}};
  if (first > 0) states.push_back({static_cast<std::byte*>(prefill_.sink_features), 0, sink_features()});
  return states;
}

void Eagle3Draft::prefill_layer(const LayerInput& input) {
  if (!feature_index(input.layer)) return;
  for (const PromptStates& to : prompt_states()) project_prompt(input, to);
}

// Rows before the input's first are already there. Groups end at absolute multiples, so a row is rounded as in a fresh
// run wherever the saved rows end. After rows that an earlier run has left, which may end anywhere, the multiples are
// shifted: on a GPU a product writes whole groups of 64 rows, the next rows' features among them.
void Eagle3Draft::project_prompt(const LayerInput& input, const PromptStates& to) {
  const int64_t end = to.first + to.rows, first = std::max(to.first, input.first), shift = first % kPrefixTile;
  for (int64_t row = first; row < end;) {
    const int64_t count = std::min(kDraftPrefillGroupRows - (row - shift) % kDraftPrefillGroupRows, end - row);
    project(prompt_pass({}, nullptr, count), input, row - input.first,
            to.data + bytes((row - to.first) * config_.hidden), prefill_.normed);
    row += count;
  }
}

// Row i joins feature i with token i + 1; the last row needs the token that the target samples after the prompt.
bool Eagle3Draft::finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) {
  const int64_t rows = static_cast<int64_t>(prompt.size()) - 1, first = std::max(first_prompt_row(), resumed_rows_);
  CHECK(rows + 1 == options_.run.prompt_tokens);
  const int64_t sinks = first > 0 && resumed_rows_ == 0 ? kDraftSinkRows : 0, kept = rows - first;
  const std::byte* const features =
      static_cast<std::byte*>(prefill_.features) + bytes((first - first_feature_row()) * config_.hidden);
  const void* const sink_rows = first_feature_row() > 0 ? prefill_.sink_features : prefill_.features;
  upload_prompt(prompt.subspan(1), sinks, first, kept);
  if (sinks > 0) {
    const Pass pass = prompt_pass(prefill_.layer, prompt_.positions, sinks);
    join(pass, prompt_.tokens, sink_rows, prefill_.joined);
    rotate_rows(pass, weights_.views(), 0, sinks, cache_->sinks(0));
  }
  for (int64_t row = 0; row < kept; row += kDraftPrefillGroupRows) {
    const int64_t count = std::min(kDraftPrefillGroupRows, kept - row);
    const Pass pass = prompt_pass(prefill_.layer, prompt_.positions + sinks + row, count);
    join(pass, prompt_.tokens + sinks + row, features + bytes(row * config_.hidden), prefill_.joined);
    rotate_into_ring(pass, weights_.views(), first + row);
  }
  compute_->copy(work_.pass_features, features + bytes(kept * config_.hidden), bytes(config_.hidden),
                 Link::kWithinDevice);
  stable_features_.assign(1, 0);
  end_prefill(rows, sinks > 0);
  prefilled_ = true;
  return true;
}

// ---- from run to run ------------------------------------------------------------------------------------------------

namespace {

struct KeptEagle3 : KeptDraft {
  explicit KeptEagle3(DraftCache cache_of_run) : cache(std::move(cache_of_run)) {}
  DraftCache cache;
};

}  // namespace

// The rows of the tokens that were accepted last are computed now, while their features are there. Some are not: those
// of a step before the last one if that one, at the end of the run, did not ask for a tree; and those of earlier rows,
// the last of which keeps the token that followed it here where the next prompt parts from the text earlier. A few rows
// of many are then what the ring has in their place, zeros or rows of another text: a draft guesses a little worse.
std::unique_ptr<KeptDraft> Eagle3Draft::keep(int32_t next, int64_t position) {
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
  return std::make_unique<KeptEagle3>(*std::move(cache_));
}

void Eagle3Draft::resume(std::unique_ptr<KeptDraft> kept, int64_t rows) {
  auto* const mine = dynamic_cast<KeptEagle3*>(kept.get());
  if (mine == nullptr || mine->cache.rows() < rows) return;
  kept_cache_.emplace(std::move(mine->cache));
  kept_cache_->rewind(rows);
  resumed_rows_ = rows;
}

}  // namespace headrace
