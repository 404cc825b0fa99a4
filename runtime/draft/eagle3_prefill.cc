// Prefill of the EAGLE-3 draft. Its layer is its only one, so that K and V of a prompt row need the row's feature and
// the next token's embedding and no attention at all; and with a window only the last rows' features are ever needed.
// Features are summed up as the target's layers are reached: no buffer of three states a row.
#include <algorithm>

#include "kernels/elementwise.h"
#include "runtime/draft/eagle3_work.h"

namespace headrace {
namespace {

uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }

struct Staging {
  int32_t *tokens, *positions;
};
Staging carve_staging(Carver& carver, int64_t rows) {
  return {.tokens = carver.take<int32_t>(rows), .positions = carver.take<int32_t>(rows)};
}

}  // namespace

int64_t Eagle3Draft::first_prompt_row() const { return shape_.first_kept(options_.prompt_tokens - 1); }

Eagle3Draft::PrefillWork Eagle3Draft::carve_prefill(Carver& carver) const {
  const int64_t kept = options_.prompt_tokens - first_prompt_row(), group = std::min(padded(kept), kPrefillGroupRows);
  const uint64_t type_bytes = dtype_bytes(weights_.dtype());
  const auto rows_of = [&](int64_t rows, int64_t width) { return carver.take_bytes(u(rows * width) * type_bytes); };
  PrefillWork work;
  work.tokens = carver.take<int32_t>(kDraftSinkRows + kept);
  work.positions = carver.take<int32_t>(kDraftSinkRows + kept);
  work.sink_features = rows_of(padded(kDraftSinkRows), config_.hidden);
  work.features = rows_of(padded(kept), config_.hidden);
  work.normed = config_.fc_norm ? rows_of(group, config_.target_hidden) : nullptr;
  work.token = rows_of(group, config_.hidden);
  work.joined = rows_of(group, 2 * config_.hidden);
  work.qkv = rows_of(group, qkv_width());
  return work;
}

uint64_t Eagle3Draft::prefill_staging_bytes() const {
  Carver carver(nullptr);
  carve_staging(carver, kDraftSinkRows + options_.prompt_tokens - first_prompt_row());
  return carver.used_bytes();
}

void Eagle3Draft::prefill_layer(const LayerInput& input) {
  if (!feature_index(input.layer)) return;
  const int64_t first = first_prompt_row();
  if (first > 0) project(input, 0, kDraftSinkRows, prefill_->sink_features, prefill_->normed, ProductPath::kPrefill);
  for (int64_t row = first; row < input.rows; row += kPrefillGroupRows) {
    std::byte* const to =
        static_cast<std::byte*>(prefill_->features) + u((row - first) * config_.hidden) * type_bytes();
    project(input, row, std::min(kPrefillGroupRows, input.rows - row), to, prefill_->normed, ProductPath::kPrefill);
  }
}

// Row i joins feature i with token i + 1; the last row waits for the token that the target samples after the prompt.
void Eagle3Draft::finish_prefill(std::span<const int32_t> prompt) {
  const int64_t rows = static_cast<int64_t>(prompt.size()) - 1, first = first_prompt_row();
  CHECK(rows + 1 == options_.prompt_tokens);
  const int64_t sinks = first > 0 ? kDraftSinkRows : 0, kept = rows - first;
  Carver carver(prefill_staging_.data());
  const Staging host = carve_staging(carver, kDraftSinkRows + kept + 1);
  for (int64_t i = 0; i < sinks + kept; ++i) {
    const int64_t position = i < sinks ? i : first + i - sinks;
    host.tokens[i] = prompt[static_cast<size_t>(position + 1)];
    host.positions[i] = static_cast<int32_t>(position);
  }
  const uint64_t list_bytes = u(sinks + kept) * sizeof(int32_t);
  compute_->copy(prefill_->tokens, host.tokens, list_bytes, Link::kHostToDevice);
  compute_->copy(prefill_->positions, host.positions, list_bytes, Link::kHostToDevice);
  if (sinks > 0) {
    join_prompt(0, sinks, prefill_->sink_features);
    rotate_prompt(0, 0, sinks, cache_->sinks(0));
  }
  for (int64_t row = 0; row < kept; row += kPrefillGroupRows) {
    const int64_t count = std::min(kPrefillGroupRows, kept - row);
    join_prompt(sinks + row, count,
                static_cast<std::byte*>(prefill_->features) + u(row * config_.hidden) * type_bytes());
    for (int64_t done = 0; done < count;) {  // the ring may end in the middle
      const DraftCache::Run run = cache_->ring_run(0, first + row + done);
      const int64_t here = std::min(run.rows, count - done);
      rotate_prompt(done, sinks + row + done, here, run.to);
      done += here;
    }
  }
  const uint64_t row_bytes = u(config_.hidden) * type_bytes();
  compute_->copy(work_->pass_features, static_cast<std::byte*>(prefill_->features) + u(kept) * row_bytes, row_bytes,
                 Link::kWithinDevice);
  compute_->synchronize();
  cache_->set_rows(rows, sinks > 0);
  stable_features_.assign(1, 0);
  stable_tokens_.clear();
  prefill_.reset();
  prefill_memory_ = {};
  prefill_staging_ = {};
}

// Rows [first, first + count) of the list of tokens, with their features: up to qkv.
void Eagle3Draft::join_prompt(int64_t first, int64_t count, const void* features) {
  join({.tokens = prefill_->tokens + first,
        .features = features,
        .token = prefill_->token,
        .joined = prefill_->joined,
        .qkv = prefill_->qkv,
        .rows = count,
        .path = ProductPath::kPrefill});
}

void Eagle3Draft::rotate_prompt(int64_t qkv_row, int64_t list_row, int64_t rows, const KvRows& to) {
  std::byte* const qkv = static_cast<std::byte*>(prefill_->qkv) + u(qkv_row * qkv_width()) * type_bytes();
  rotate(qkv, prefill_->positions + list_row, rows, to);
}

}  // namespace headrace
