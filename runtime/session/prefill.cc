#include "runtime/session/prefill.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/elementwise/op.h"
#include "offload/device/trace.h"
#include "runtime/layers/token_inputs.h"
#include "runtime/session/prompt_scores.h"
#include "runtime/session/recur.h"

namespace headrace {
namespace {

// Waits for the streams that use prefill's buffers before the buffers are freed, also during stack unwinding.
class DrainOnExit {
 public:
  DrainOnExit(Stream& compute, KvCache& cache, PrefixRun* prefix, std::unique_ptr<HostStates>& states)
      : compute_(compute), cache_(cache), prefix_(prefix), states_(states) {}
  DrainOnExit(const DrainOnExit&) = delete;
  DrainOnExit& operator=(const DrainOnExit&) = delete;
  ~DrainOnExit() {
    if (prefix_ != nullptr) prefix_->end_reads();
    drain(compute_);
    states_.reset();
    cache_.drain();
  }

 private:
  Stream& compute_;
  KvCache& cache_;
  PrefixRun* prefix_;
  std::unique_ptr<HostStates>& states_;
};

}  // namespace

Prefill::Prefill(Sequence& sequence, const SessionLayout& layout, const SessionBuffers& buffers,
                 WeightStreamer& weights, const Watcher& watcher)
    : layout_(layout),
      options_(layout_.options()),
      compute_(layout_.compute()),
      buffers_(buffers),
      sequence_(sequence),
      weights_(weights),
      watcher_(watcher) {}

bool Prefill::run(std::span<const int32_t> ids) {
  Device& device = layout_.device();
  const PromptShape prompt = layout_.prompt();
  DeviceBuffer memory =
      device.allocate(carved_bytes([&](BumpAllocator& size) { layout_.carve_prefill(prompt, size); }), "prefill");
  LayerRows rows(layout_, sequence_);
  PinnedBuffer staging = device.allocate_pinned(
      PrefillStaging::bytes(options_.prompt_tokens, layout_.segment_tables(), layout_.scored()), "the prompt");
  const DrainOnExit guard(compute_, sequence_.cache(), sequence_.prefix(), host_states_);
  BumpAllocator allocator(memory.data()), pinned(staging.data());
  work_ = layout_.carve_prefill(prompt, allocator);
  const PrefillStaging host =
      PrefillStaging::carve(pinned, options_.prompt_tokens, layout_.segment_tables(), layout_.scored());
  if (options_.kept_rows > 0) sequence_.cache().keep(options_.kept_rows);
  upload_prompt(ids, host);
  rows.fill_tables(host.segments, work_.segments);
  if (layout_.streams_states()) {
    host_states_ = std::make_unique<HostStates>(layout_, work_.state_slots, groups());
    work_.hidden = host_states_->all();
  } else {
    embed(layout_.saved_rows(), layout_.computed_rows(), work_.hidden);
  }
  begin_states();
  const bool finished =
      layers(rows) && draft(ids) && (!layout_.scored() || score_prompt(layout_, buffers_, work_, host, watcher_));
  keep_last_state();
  if (sequence_.snapshots() != nullptr) sequence_.snapshots()->end(finished);
  sequence_.cache().finish_prefill(finished ? options_.prompt_tokens : options_.kept_rows);
  if (sequence_.windows() != nullptr) sequence_.windows()->finish_prefill(options_.prompt_tokens);
  // Reports errors of the host memory even if nothing was offloaded yet. An interrupted run needs none of it.
  if (finished) sequence_.cache().backing().wait_for_host_memory();
  if (finished && sequence_.draft() != nullptr) {
    const ScoringQueries last = last_queries(layout_.config().layer_count() - 1, 1);
    sequence_.draft()->observe_query({.q = last.q, .type = last.type, .refresh = true});
  }
  return finished;
}

// The states before the first row that is computed, but for those of a saved prefix (begin_prefix) and of windows
// (LayerRows::restore).
void Prefill::begin_states() {
  if (sequence_.recurrent() != nullptr && options_.kept_rows > 0) {
    sequence_.snapshots()->restore(options_.kept_rows, *sequence_.recurrent(), compute_);
  } else if (sequence_.recurrent() != nullptr && layout_.saved_rows() == 0) {
    sequence_.recurrent()->clear(compute_);
  }
  if (sequence_.snapshots() == nullptr) return;
  sequence_.snapshots()->begin(layout_.saved_rows(), layout_.snapshots(), layout_.most_snapshots());
}

void Prefill::upload_prompt(std::span<const int32_t> ids, const PrefillStaging& host) {
  std::copy(ids.begin(), ids.end(), host.ids);
  for (int64_t i = 0; i < options_.prompt_tokens; ++i) host.positions[i] = static_cast<int32_t>(i);
  compute_.copy(work_.ids, host.ids, ids.size_bytes(), Link::kHostToDevice, "prompt");
  compute_.copy(work_.positions, host.positions, ids.size_bytes(), Link::kHostToDevice, "positions");
}

// To the step's residual stream.
void Prefill::keep_last_state() {
  const uint64_t before = static_cast<uint64_t>(layout_.computed_rows() - 1) * layout_.hidden_row_bytes();
  convert({.in = static_cast<std::byte*>(work_.hidden) + before,
           .out = buffers_.step().hidden,
           .in_type = layout_.weights().dtype(),
           .out_type = DType::kF32,
           .count = layout_.config().hidden},
          compute_);
  compute_.synchronize();
}

void Prefill::embed(int64_t first, int64_t rows, void* to) {
  const Weights& weights = layout_.weights();
  embed_tokens(weights.embedding(),
               {.ids = work_.ids + first,
                .rows = rows,
                .type = weights.dtype(),
                .out_type = weights.dtype(),
                .out = to,
                .factor = embedding_factor(layout_.config(), weights.dtype())},
               compute_);
}

bool Prefill::layers(LayerRows& rows) {
  const int64_t prompt = options_.prompt_tokens, saved = layout_.saved_rows();
  const int64_t layer_count = layout_.config().layer_count();
  Progress* const progress = watcher_.progress;
  GroupProgress groups(layout_.device(), compute_, watcher_);
  if (progress) progress->begin("prefill", "tokens", prompt);
  if (progress && saved > 0) progress->skip(saved);
  bool go_on = begin_prefix();
  for (int64_t layer = 0; layer < layer_count && go_on; ++layer) {
    const TraceSpan span(compute_, {"layer", layer});
    const StatePlace at = layout_.groups().at(layer);
    go_on = at.group == StateGroup::kRecurrent || !at.own || rows.restore(at);
    if (!go_on) break;
    if (!host_states_) show_draft(layer);
    const LayerWeights weights = layer_weights(layer);
    buffers_.keep_key_norm(at, weights);
    if (at.group == StateGroup::kRows && at.own) rows.make_keys(at, buffers_.key_maker(at.place));
    int8_rows_ = 0;
    for (int64_t first = saved; first < prompt && go_on; first += last_group_) {
      last_group_ = group_rows(first);
      compute_group({.layer = layer, .at = at, .weights = weights, .first = first, .rows = last_group_}, rows);
      go_on = groups.enqueued(saved + (layer * (prompt - saved) + first - saved + last_group_) / layer_count);
    }
    weights_.done(layer, compute_);
    if (!go_on) break;  // interrupted: where the layer would be stored may not be pinned yet
    if (!at.own) continue;
    if (at.group == StateGroup::kRows) {
      fill_partial(layer, at, rows);
      show_queries(sequence_.draft(), at, last_queries(layer, 1));
    }
    if (at.group != StateGroup::kRecurrent) rows.store(at);
    if (at.group != StateGroup::kRows) save_states(at.place);
  }
  if (host_states_) host_states_->finish(compute_);
  if (go_on) show_draft(layer_count);
  compute_.synchronize();
  if (progress) progress->update(prompt);
  if (progress) progress->end();
  return go_on;
}

// The states at the input of a layer.
void Prefill::show_draft(int64_t layer) {
  show_draft(layer, layout_.saved_rows(), layout_.computed_rows(), work_.hidden);
}

void Prefill::show_draft(int64_t layer, int64_t first, int64_t rows, const void* states) {
  if (sequence_.draft() == nullptr) return;
  sequence_.draft()->prefill_layer({layer, states, layout_.weights().dtype(), rows, first});
}

int64_t Prefill::groups() const {
  int64_t count = 0;
  for (int64_t first = layout_.saved_rows(); first < options_.prompt_tokens; first += group_rows(first)) ++count;
  return count;
}

// Groups begin at absolute multiples.
int64_t Prefill::group_rows(int64_t first) const {
  const int64_t group = layout_.prefill_group();
  return std::min(group - (first - layout_.group_shift()) % group, options_.prompt_tokens - first);
}

// The partial KV takes the rows of a layer that is built; queries of the last group select blocks.
void Prefill::fill_partial(int64_t layer, const StatePlace& at, const LayerRows& rows) {
  if (sequence_.partial() == nullptr) return;
  const int64_t prompt = options_.prompt_tokens;
  int64_t scoring = sequence_.partial()->selects() ? prompt_scoring_rows(prompt, layout_.prefill_group()) : 0;
  if (layout_.group_shift() > 0) scoring = std::min(scoring, last_group_);
  CHECK(scoring <= last_group_, "scoring=", scoring, " of ", last_group_);
  sequence_.partial()->fill_layer(at.place, prompt, rows.host_segments(at), last_queries(layer, scoring), compute_);
}

// The last of this layer, which was computed last.
ScoringQueries Prefill::last_queries(int64_t layer, int64_t count) const {
  return scoring_queries(layout_, layout_.config().layer(layer), work_.layer, {.rows = last_group_, .count = count});
}

// The draft's saved rows are read first.
bool Prefill::begin_prefix() {
  if (sequence_.prefix() == nullptr) return true;
  sequence_.prefix()->begin(layout_.device());
  const std::vector<PromptStates> states =
      sequence_.draft() != nullptr ? sequence_.draft()->prompt_states() : std::vector<PromptStates>();
  if (!sequence_.prefix()->restore_draft(states, compute_)) return false;
  return !layout_.groups().need_snapshots() || restore_states();
}

// The states behind a saved prefix. Windows are read from their snapshot, layer by layer.
bool Prefill::restore_states() {
  const int64_t saved = layout_.saved_rows();
  RecurrentState* const states = sequence_.recurrent();
  StateSnapshots& snapshots = *sequence_.snapshots();
  const uint64_t bytes = layout_.snapshot_shape().used_bytes();
  const auto take = [&](int64_t layer, const std::byte* data, Stream& in) {
    if (states != nullptr) return states->load(layer, data, in);
    std::copy_n(data, bytes, snapshots.part(saved, layer));  // both in host memory
  };
  if (!sequence_.prefix()->restore_states(take, compute_)) return false;
  if (states == nullptr || saved == 0 || snapshots.next(saved - 1, saved) == 0) return true;
  for (int64_t layer = 0; layer < layout_.groups().recurrent_layers(); ++layer) {
    snapshots.take(saved, layer, *states, compute_);
  }
  return true;
}

bool Prefill::draft(std::span<const int32_t> ids) {
  if (sequence_.draft() == nullptr) return true;
  if (sequence_.prefix() != nullptr) {
    std::shared_ptr<Event> made = layout_.device().make_event();
    compute_.record(*made);
    sequence_.prefix()->draft_made(sequence_.draft()->prompt_states(), std::move(made));
  }
  return sequence_.draft()->finish_prefill(ids, watcher_.progress, watcher_.interrupt);
}

// On a GPU, large groups need weights in the compute type: quantised matrices are dequantised once a layer, or, in a
// lean prefill, each before its product.
LayerWeights Prefill::layer_weights(int64_t layer) {
  LayerWeights weights = weights_.use(layer, compute_);
  std::byte* to = work_.matrices;
  if (options_.prefill_int8) int8_layer_weights(weights, layout_.weights().dtype(), work_.int8.layer, compute_);
  if (to == nullptr || options_.lean_prefill) return weights;
  const DType type = layout_.weights().dtype();
  for (Weight* weight : {&weights.qkv, &weights.output, &weights.gate_up, &weights.down}) {
    if (*weight == nullptr || weight->plain()) continue;
    *weight = dequantised(*weight, type, to, compute_);
    to += unpacked_bytes(*weight, type);
  }
  return weights;
}

void Prefill::compute_group(const Group& group, LayerRows& built) {
  const LayerWeights& weights = group.weights;
  const TraceSpan span(compute_, {"from row", group.first});
  const uint64_t before = static_cast<uint64_t>(group.first - layout_.saved_rows()) * layout_.hidden_row_bytes();
  std::byte* hidden = static_cast<std::byte*>(work_.hidden) + before;
  if (host_states_) {
    hidden = host_states_->next(compute_);
    if (group.layer == 0) embed(group.first, group.rows, hidden);
    show_draft(group.layer, group.first, group.rows, hidden);
  }
  Pass pass = buffers_.make_pass(work_.layer, work_.positions + group.first, group.rows, ProductPath::kPrefill);
  if (options_.lean_prefill) pass.matrix = work_.matrices;
  make_token_inputs(pass, layout_.config(), layout_.weights(),
                    {.ids = work_.ids + group.first, .first = group.layer, .count = 1});
  if (options_.prefill_int8) {
    int8_qkv_product(pass, weights, work_.int8.layer, hidden);
  } else {
    qkv_product(pass, weights, hidden);
  }
  mix(pass, group, built);
  if (options_.prefill_int8) {
    int8_layer_output(pass, weights, work_.int8.layer, hidden);
  } else {
    layer_output(pass, weights, hidden);
  }
  add_token_input(pass, weights, 0, 1, hidden);
  if (host_states_) {
    host_states_->done(before, static_cast<uint64_t>(group.rows) * layout_.hidden_row_bytes(), compute_);
  }
}

// work.qkv -> work.attention.
void Prefill::mix(const Pass& pass, const Group& group, LayerRows& built) {
  if (!group.weights.spec.has_attention()) return recur(pass, group);
  if (group.at.own) {
    if (group.first == layout_.saved_rows()) built.wait_for_buffer(group.at);
    built.build(pass, group.weights, group.at, group.first);
  } else {
    rotate_rows(pass, group.weights, 0, pass.rows, {});
  }
  attend(pass, group, built);
  gate_output(pass, group.weights);
}

// Calls end where a snapshot is taken; that is at multiples of 64 rows, so it changes no bit (kernels/recurrence).
void Prefill::recur(const Pass& pass, const Group& group) {
  const LayerSpec& spec = group.weights.spec;
  const int64_t end = group.first + group.rows;
  for (int64_t first = group.first; first < end;) {
    const int64_t snapshot = sequence_.snapshots() != nullptr ? sequence_.snapshots()->next(first, end) : 0;
    const int64_t before = first - group.first;
    Pass part = pass;
    part.rows = (snapshot > 0 ? snapshot : end) - first;
    part.work.qkv = pass.at(pass.work.qkv, before * spec.in_width());
    part.work.attention = pass.at(pass.work.attention, before * spec.out_width());
    delta_prefill(part, group.weights, delta_state(*sequence_.recurrent(), group.at.place), work_.delta);
    if (snapshot > 0) sequence_.snapshots()->take(snapshot, group.at.place, *sequence_.recurrent(), compute_);
    first += part.rows;
  }
}

void Prefill::save_states(int64_t layer) {
  if (sequence_.prefix() == nullptr) return;
  std::shared_ptr<Event> taken = layout_.device().make_event();
  compute_.record(*taken);
  sequence_.prefix()->states_taken(layer, *sequence_.snapshots(), std::move(taken));
}

void Prefill::attend(const Pass& pass, const Group& group, const LayerRows& rows) {
  const TraceSpan span(compute_, "attention");
  PrefillAttentionParams params = {.shape = attention_shape(pass, group.weights.spec.attention()),
                                   .q = pass.work.qkv,
                                   .segments = rows.segments(group.at),
                                   .out = pass.work.attention,
                                   .segment_count = rows.segment_count(),
                                   .first_position = group.first,
                                   .sinks = group.weights.sinks};
  if (options_.prefill_int8 && attends_in_int8(group.weights.spec.attention())) {
    int8_rows_ = int8_prefill_attention(params, work_.int8, int8_rows_, compute_);
  } else {
    prefill_attention(params, compute_);
  }
}

}  // namespace headrace
