#include "runtime/session/prefill.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/elementwise/op.h"
#include "offload/device/trace.h"
#include "offload/host/thread_pool.h"
#include "runtime/kv/stored_rows.h"
#include "runtime/session/attend.h"

namespace headrace {
namespace {

constexpr size_t kGroupsAhead = 4;  // the host enqueues at most this far ahead: progress and Ctrl-C stay prompt

// Segment `index` at `data`, with the rows that the prompt fills.
KvSegment built_segment(const RowShape& shape, const std::byte* data, int64_t index, int64_t prompt_tokens) {
  KvSegment segment = segment_view(shape, data, index);
  segment.rows = static_cast<int32_t>(std::min<int64_t>(segment.rows, prompt_tokens - segment.position));
  return segment;
}

// The destination of row `first`, in the segment at `data`, and of the rows after it, up to the segment's end.
KvRows rows_from(const RowShape& shape, std::byte* data, int64_t first) {
  const SegmentRange range = segment_range(segment_of(first));
  const uint64_t row = static_cast<uint64_t>(first - range.begin), dim = static_cast<uint64_t>(shape.head_dim);
  std::byte* const v = data + static_cast<uint64_t>(range.rows) * shape.k_bytes();
  return {.k = data + row * dim * dtype_bytes(shape.k_type),
          .v = v + row * dim * dtype_bytes(shape.v_type),
          .row_stride = shape.head_dim,
          .head_stride = range.rows * shape.head_dim};
}

// Waits for the streams that use prefill's buffers before the buffers are freed, also during stack unwinding.
class DrainOnExit {
 public:
  DrainOnExit(Stream& compute, KvCache& cache, PrefixRun* prefix) : compute_(compute), cache_(cache), prefix_(prefix) {}
  DrainOnExit(const DrainOnExit&) = delete;
  DrainOnExit& operator=(const DrainOnExit&) = delete;
  ~DrainOnExit() {
    if (prefix_ != nullptr) prefix_->end_reads();
    drain(compute_);
    cache_.drain();
  }

 private:
  Stream& compute_;
  KvCache& cache_;
  PrefixRun* prefix_;
};

// Reports progress as groups finish, a few groups behind the host, and notices an interrupt.
class GroupProgress {
 public:
  GroupProgress(Device& device, Stream& stream, Progress* progress, const std::atomic<bool>* interrupt)
      : stream_(stream), progress_(progress), interrupt_(interrupt) {
    for (std::unique_ptr<Event>& event : events_) event = device.make_event();
  }
  // A group is enqueued, and with it `done` units of the stage. False: stop.
  bool enqueued(int64_t done) {
    const size_t slot = count_++ % kGroupsAhead;
    events_[slot]->synchronize();  // the group kGroupsAhead before this one
    if (progress_) progress_->update(done_[slot]);
    stream_.record(*events_[slot]);
    done_[slot] = done;
    return interrupt_ == nullptr || !interrupt_->load(std::memory_order_relaxed);
  }

 private:
  Stream& stream_;
  Progress* progress_;
  const std::atomic<bool>* interrupt_;
  std::array<std::unique_ptr<Event>, kGroupsAhead> events_;
  std::array<int64_t, kGroupsAhead> done_{};
  size_t count_ = 0;
};

}  // namespace

Prefill::Prefill(const SessionPlan& plan, const SessionBuffers& buffers, KvCache& cache, PartialRows* partial,
                 const Watcher& watcher)
    : layout_(plan.layout),
      options_(layout_.options()),
      exact_(layout_.shape().exact()),
      compute_(layout_.compute()),
      buffers_(buffers),
      cache_(cache),
      partial_(partial),
      watcher_(watcher) {}

bool Prefill::run(std::span<const int32_t> ids) {
  Device& device = layout_.device();
  const PromptShape prompt = layout_.prompt();
  const int64_t segments = segments_for(prompt.tokens);
  DeviceBuffer memory =
      device.allocate(carved_bytes([&](BumpAllocator& size) { layout_.carve_prefill(prompt, size); }), "prefill");
  DeviceBuffer buffer = device.allocate(segments_bytes(exact_, 0, segments), "the layer that prefill builds"), stored;
  if (layout_.shape().has_low_bit()) {
    stored = device.allocate(segments_bytes(layout_.shape(), 0, segments), "the same layer, quantised");
  }
  PinnedBuffer staging = device.allocate_pinned(
      PrefillStaging::bytes(options_.prompt_tokens, layout_.segment_tables(), layout_.scored()), "the prompt");
  const DrainOnExit guard(compute_, cache_, options_.prefix);
  BumpAllocator allocator(memory.data());
  work_ = layout_.carve_prefill(prompt, allocator);
  work_.layer_buffer = buffer.data();
  work_.stored_layer = layout_.shape().has_low_bit() ? stored.data() : buffer.data();
  if (options_.kept_rows > 0) cache_.keep(options_.kept_rows);
  upload_prompt(ids, staging);
  embed_prompt();
  const bool finished = layers() && draft(ids) && score(staging);
  const uint64_t row_bytes = layout_.hidden_row_bytes();
  const std::byte* const last_state =
      static_cast<std::byte*>(work_.hidden) + static_cast<uint64_t>(layout_.computed_rows() - 1) * row_bytes;
  convert({.in = last_state,
           .out = buffers_.step().hidden,
           .in_type = layout_.weights().dtype(),
           .out_type = DType::kF32,
           .count = layout_.config().hidden},
          compute_);
  compute_.synchronize();
  cache_.finish_prefill(finished ? options_.prompt_tokens : options_.kept_rows);
  // Reports errors of the host memory even if nothing was offloaded yet. An interrupted run needs none of it.
  if (finished) cache_.backing().wait_for_host_memory();
  if (finished && options_.draft != nullptr) {
    const ScoringQueries last =
        scoring_queries(layout_, layout_.config().layer_count() - 1, work_.layer, last_group_, 1);
    options_.draft->observe_query({.q = last.q, .type = last.type, .refresh = true});
  }
  return finished;
}

void Prefill::upload_prompt(std::span<const int32_t> ids, const PinnedBuffer& staging) {
  BumpAllocator allocator(staging.data());
  const PrefillStaging host =
      PrefillStaging::carve(allocator, options_.prompt_tokens, layout_.segment_tables(), layout_.scored());
  std::copy(ids.begin(), ids.end(), host.ids);
  for (int64_t i = 0; i < options_.prompt_tokens; ++i) host.positions[i] = static_cast<int32_t>(i);
  compute_.copy(work_.ids, host.ids, ids.size_bytes(), Link::kHostToDevice, "prompt");
  compute_.copy(work_.positions, host.positions, ids.size_bytes(), Link::kHostToDevice, "positions");
  const int64_t tables = layout_.segment_tables(), count = work_.segment_count;
  for (int64_t table = 0; table < tables; ++table) {
    for (int64_t i = 0; i < count; ++i) {
      host.segments[table * count + i] = built_segment(exact_, exact_segment(table, i), i, options_.prompt_tokens);
    }
  }
  work_.host_segments = {host.segments, static_cast<size_t>(tables * count)};
  compute_.copy(work_.segments, host.segments, static_cast<uint64_t>(tables * count) * sizeof(KvSegment),
                Link::kHostToDevice, "segments");
}

std::byte* Prefill::exact_segment(int64_t layer, int64_t index) const {
  std::byte* const in_place = options_.kept_rows > 0 ? cache_.segment_in_place(layer, index) : nullptr;
  return in_place != nullptr ? in_place : work_.layer_buffer + segments_bytes(exact_, 0, index);
}

std::byte* Prefill::stored_segment(int64_t index) const {
  return work_.stored_layer + segments_bytes(layout_.shape(), 0, index);
}

int64_t Prefill::first_segment(int64_t layer) const {
  return layout_.segment_tables() > 1 ? layer * work_.segment_count : 0;
}

void Prefill::embed_prompt() {
  const Weights& weights = layout_.weights();
  embed_tokens(weights.embedding(),
               {.ids = work_.ids + layout_.saved_rows(),
                .rows = layout_.computed_rows(),
                .type = weights.dtype(),
                .out_type = weights.dtype(),
                .out = work_.hidden},
               compute_);
}

bool Prefill::layers() {
  const int64_t prompt = options_.prompt_tokens, group = layout_.prefill_group(), saved = layout_.saved_rows();
  const int64_t shift = layout_.group_shift();
  PrefixRun* const prefix = options_.prefix;
  const int64_t layer_count = layout_.config().layer_count();
  Progress* const progress = watcher_.progress;
  std::shared_ptr<Event> left = layout_.device().make_event();  // the layer buffer is free
  GroupProgress groups(layout_.device(), compute_, progress, watcher_.interrupt);
  if (progress) progress->begin("prefill", "tokens", prompt);
  if (progress && saved > 0) progress->skip(saved);
  const KvCache::BuiltRows built{.end = prompt, .kept = options_.kept_rows};
  bool go_on = begin_prefix();
  for (int64_t layer = 0; layer < layer_count && go_on; ++layer) {
    const TraceSpan span(compute_, {"layer", layer});
    go_on = prefix == nullptr || prefix->restore_layer(layer, work_.stored_layer, *left, compute_);
    if (!go_on) break;
    if (options_.kept_rows > 0) cache_.restore_layer(layer, built, work_.stored_layer, *left, compute_);
    restore_saved_rows();
    if (options_.draft != nullptr)
      options_.draft->prefill_layer({layer, work_.hidden, layout_.weights().dtype(), prompt - saved, saved});
    const LayerWeights weights = layer_weights(layer);
    int8_rows_ = 0;
    int64_t rows = 0;  // of a group; groups begin at absolute multiples
    for (int64_t first = saved; first < prompt && go_on; first += rows) {
      rows = std::min(group - (first - shift) % group, prompt - first);
      last_group_ = rows;
      group_rows({.layer = layer, .weights = weights, .first = first, .rows = rows}, *left);
      go_on = groups.enqueued(saved + (layer * (prompt - saved) + first - saved + rows) / layer_count);
    }
    if (!go_on) break;  // interrupted: where the layer would be stored may not be pinned yet
    fill_partial(layer);
    if (prefix != nullptr) left = layout_.device().make_event();  // the saver waits for one event per layer
    cache_.store_layer(layer, built,
                       {.stored = work_.stored_layer,
                        .exact = work_.layer_buffer,
                        .copy = partial_ != nullptr ? partial_->copy(layer) : std::span<const KvSegment>()},
                       compute_, *left);
    if (prefix != nullptr) prefix->layer_stored(layer, cache_, work_.stored_layer, left);
  }
  compute_.synchronize();
  if (progress) progress->update(prompt);
  if (progress) progress->end();
  return go_on;
}

// The partial KV takes the rows of a layer that is built; queries of the last group select blocks.
void Prefill::fill_partial(int64_t layer) {
  if (partial_ == nullptr) return;
  const int64_t prompt = options_.prompt_tokens;
  int64_t scoring = partial_->selects() ? prompt_scoring_rows(prompt, layout_.prefill_group()) : 0;
  if (layout_.group_shift() > 0) scoring = std::min(scoring, last_group_);
  CHECK(scoring <= last_group_, "scoring=", scoring, " of ", last_group_);
  const std::span<const KvSegment> segments =
      work_.host_segments.subspan(static_cast<size_t>(first_segment(layer)), static_cast<size_t>(work_.segment_count));
  partial_->fill_layer(layer, prompt, segments, scoring_queries(layout_, layer, work_.layer, last_group_, scoring),
                       compute_);
}

// The draft's saved rows are read first.
bool Prefill::begin_prefix() {
  if (options_.prefix == nullptr) return true;
  options_.prefix->begin(layout_.device());
  const std::vector<PromptStates> states =
      options_.draft != nullptr ? options_.draft->prompt_states() : std::vector<PromptStates>();
  return options_.prefix->restore_draft(states, compute_);
}

bool Prefill::draft(std::span<const int32_t> ids) {
  if (options_.draft == nullptr) return true;
  if (options_.prefix != nullptr) {
    std::shared_ptr<Event> made = layout_.device().make_event();
    compute_.record(*made);
    options_.prefix->draft_made(options_.draft->prompt_states(), std::move(made));
  }
  return options_.draft->finish_prefill(ids, watcher_.progress, watcher_.interrupt);
}

// Leaves the final states for another run, or compares its logits with those that another run's states give.
class Prefill::Comparison {
 public:
  Comparison(const SessionLayout& layout, const PrefillWork& work, Stream& compute)
      : layout_(layout), work_(work), compute_(compute), to_(layout.options().scores->compare) {
    if (to_ == nullptr) return;
    leaves_ = to_->states.empty();
    const auto prompt = static_cast<size_t>(layout.options().prompt_tokens);
    const uint64_t row = layout.hidden_row_bytes();
    if (leaves_) {
      to_->states.resize(prompt * row);
    } else {
      CHECK(to_->states.size() == prompt * row, "states of another prompt: ", to_->states.size(), " bytes");
      to_->kl.assign(prompt, 0.0f);
      to_->same_first.assign(prompt, 0);
      pool_.emplace(layout.device().threads());
    }
    host_ = layout.device().allocate_pinned(layout.comparison_bytes(), "the states of another run");
  }

  // The rows' logits are in work.logits. `pass` made them of `hidden`.
  void add(const Pass& pass, const void* hidden, int64_t first) {
    if (to_ == nullptr) return;
    const uint64_t bytes = static_cast<uint64_t>(pass.rows) * layout_.hidden_row_bytes();
    std::byte* const kept = to_->states.data() + static_cast<uint64_t>(first) * layout_.hidden_row_bytes();
    if (leaves_) {
      compute_.copy(host_.data(), hidden, bytes, Link::kDeviceToHost, "states");
      compute_.synchronize();
      std::copy_n(host_.data(), bytes, kept);
      return;
    }
    std::copy_n(kept, bytes, host_.data());
    compute_.copy(work_.reference, host_.data(), bytes, Link::kHostToDevice, "states");
    output_logits(pass, work_.reference, work_.reference_logits);
    const int64_t vocab = layout_.config().vocab;
    const auto size = static_cast<size_t>(vocab);
    const uint64_t logit_bytes = static_cast<uint64_t>(pass.rows * vocab) * sizeof(float);
    auto* const logits =
        reinterpret_cast<float*>(host_.data() + static_cast<uint64_t>(kDrawnRows) * layout_.hidden_row_bytes());
    float* const reference = logits + kDrawnRows * vocab;
    compute_.copy(logits, work_.logits, logit_bytes, Link::kDeviceToHost, "logits");
    compute_.copy(reference, work_.reference_logits, logit_bytes, Link::kDeviceToHost, "logits");
    compute_.synchronize();
    pool_->parallel_for(pass.rows, [&](int64_t row, int) {
      const Divergence found = divergence({reference + row * vocab, size}, {logits + row * vocab, size});
      to_->kl[static_cast<size_t>(first + row)] = found.kl;
      to_->same_first[static_cast<size_t>(first + row)] = found.same_first ? 1 : 0;
    });
  }

 private:
  const SessionLayout& layout_;
  const PrefillWork& work_;
  Stream& compute_;
  StateComparison* const to_;  // null: nothing is compared
  bool leaves_ = false;
  PinnedBuffer host_;
  std::optional<ThreadPool> pool_;
};

// The head reads the final states of kDrawnRows tokens at a time, so that their logits need little memory.
bool Prefill::score(const PinnedBuffer& staging) {
  if (!layout_.scored()) return true;
  PromptScores& scores = *options_.scores;
  const int64_t prompt = options_.prompt_tokens;
  BumpAllocator allocator(staging.data());
  const PrefillStaging host = PrefillStaging::carve(allocator, prompt, layout_.segment_tables(), true);
  std::copy(scores.next.begin(), scores.next.end(), host.next);
  compute_.copy(work_.next, host.next, scores.next.size() * sizeof(int32_t), Link::kHostToDevice, "next tokens");
  // Multiplies as prefill does where the head allows it: kept weights then give the bits of dequantised ones.
  const ProductPath path = layout_.device().backend() == Backend::kCpu ? ProductPath::kPrefill : ProductPath::kDecode;
  GroupProgress groups(layout_.device(), compute_, watcher_.progress, watcher_.interrupt);
  Comparison comparison(layout_, work_, compute_);
  if (watcher_.progress) watcher_.progress->begin("score", "tokens", prompt);
  bool go_on = true;
  for (int64_t first = 0; first < prompt && go_on; first += kDrawnRows) {
    const int64_t rows = std::min(kDrawnRows, prompt - first);
    Pass pass = buffers_.make_pass(work_.layer, work_.positions + first, rows, path);
    pass.hidden_type = layout_.weights().dtype();  // the states are prefill's
    const std::byte* const hidden =
        static_cast<std::byte*>(work_.hidden) + static_cast<uint64_t>(first) * layout_.hidden_row_bytes();
    output_logits(pass, hidden, work_.logits);
    token_log_probs({.logits = work_.logits,
                     .tokens = work_.next + first,
                     .log_probs = work_.log_probs + first,
                     .rows = rows,
                     .vocab = layout_.config().vocab},
                    compute_);
    comparison.add(pass, hidden, first);
    go_on = groups.enqueued(first + rows);
  }
  compute_.copy(host.log_probs, work_.log_probs, scores.next.size() * sizeof(float), Link::kDeviceToHost, "scores");
  compute_.synchronize();
  if (go_on) scores.log_probs.assign(host.log_probs, host.log_probs + prompt);
  if (watcher_.progress) watcher_.progress->end();
  return go_on;
}

// On a GPU, large groups need weights in the compute type: quantised matrices are dequantised once a layer, or, in a
// lean prefill, each before its product.
LayerWeights Prefill::layer_weights(int64_t layer) {
  LayerWeights weights = layout_.weights().layer(layer);
  std::byte* to = work_.matrices;
  if (options_.prefill_int8) int8_layer_weights(weights, layout_.weights().dtype(), work_.int8.layer, compute_);
  if (to == nullptr || options_.lean_prefill) return weights;
  const DType type = layout_.weights().dtype();
  for (Weight* weight : {&weights.qkv, &weights.output, &weights.gate_up, &weights.down}) {
    if (weight->plain()) continue;
    *weight = dequantised(*weight, type, to, compute_);
    to += unpacked_bytes(*weight, type);
  }
  return weights;
}

void Prefill::group_rows(const Group& group, const Event& layer_left) {
  const auto& [layer, weights, first, rows] = group;
  const TraceSpan span(compute_, {"from row", first});
  std::byte* const hidden = static_cast<std::byte*>(work_.hidden) +
                            static_cast<uint64_t>(first - layout_.saved_rows()) * layout_.hidden_row_bytes();
  Pass pass = buffers_.make_pass(work_.layer, work_.positions + first, rows, ProductPath::kPrefill);
  if (options_.lean_prefill) pass.matrix = work_.matrices;
  if (options_.prefill_int8) {
    int8_qkv_product(pass, weights, work_.int8.layer, hidden);
  } else {
    qkv_product(pass, weights, hidden);
  }
  const bool in_place = options_.kept_rows > 0 && cache_.segment_in_place(layer, work_.segment_count - 1) != nullptr;
  if (first == layout_.saved_rows() && !in_place) compute_.wait(layer_left);
  build_rows(pass, group);
  attend(pass, group);
  if (options_.prefill_int8) {
    int8_layer_output(pass, weights, work_.int8.layer, hidden);
  } else {
    layer_output(pass, weights, hidden);
  }
}

void Prefill::attend(const Pass& pass, const Group& group) {
  const TraceSpan span(compute_, "attention");
  PrefillAttentionParams params = {.shape = attention_shape(pass, group.weights.spec.attention),
                                   .q = pass.work.qkv,
                                   .segments = work_.segments + first_segment(group.layer),
                                   .out = pass.work.attention,
                                   .segment_count = work_.segment_count,
                                   .first_position = group.first};
  if (options_.prefill_int8) {
    int8_rows_ = int8_prefill_attention(params, work_.int8, int8_rows_, compute_);
  } else {
    prefill_attention(params, compute_);
  }
}

// Keys and values of a group, which may span several segments.
void Prefill::build_rows(const Pass& pass, const Group& group) {
  const int64_t first = group.first;
  const RowShape& shape = layout_.shape();
  for (int64_t row = 0; row < pass.rows;) {
    const int64_t index = segment_of(first + row);
    const SegmentRange range = segment_range(index);
    const int64_t here = std::min(pass.rows - row, range.end() - (first + row));
    std::byte* const exact = exact_segment(group.layer, index);
    rotate_rows(pass, group.weights, row, here, rows_from(exact_, exact, first + row));
    if (shape.has_low_bit()) {
      RowsParams rows = rows_of(exact_, shape, built_segment(exact_, exact, index, options_.prompt_tokens),
                                built_segment(shape, stored_segment(index), index, options_.prompt_tokens),
                                first + row - range.begin, here);
      rows.write_back = true;
      quantise_rows(rows, compute_);
    }
    row += here;
  }
}

// Rows of a saved prefix are stored rows.
void Prefill::restore_saved_rows() {
  const RowShape& shape = layout_.shape();
  if (!shape.has_low_bit()) return;
  const int64_t saved = layout_.saved_rows();
  for (int64_t index = 0; index < segments_for(saved); ++index) {
    const SegmentRange range = segment_range(index);
    dequantise_rows(rows_of(exact_, shape, built_segment(shape, stored_segment(index), index, options_.prompt_tokens),
                            built_segment(exact_, exact_segment(0, index), index, options_.prompt_tokens), 0,
                            std::min(range.end(), saved) - range.begin),
                    compute_);
  }
}

}  // namespace headrace
