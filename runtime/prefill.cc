// Prefill, layer-major (DESIGN section 7): every group of the prompt goes through layer 0, then layer 1, …. A layer's K
// and V are built in a device buffer, attention reads them there, and the finished layer leaves while the next begins:
// leaving takes a few hundredths of a layer's time, so that one buffer is enough and the next layer's first rows wait
// for it. Each row crosses the link once, outwards. Rows that a saved prefix has come into the same buffer, once a
// layer, in the place of being computed; all that follows is the same.
#include <algorithm>
#include <cstring>

#include "kernels/elementwise.h"
#include "offload/trace.h"
#include "runtime/session.h"

namespace headrace {
namespace {

constexpr size_t kGroupsAhead = 4;  // the host enqueues at most this far ahead, so that progress and Ctrl-C are prompt

// Segment i of a layer buffer, with the rows that the prompt fills.
KvSegment built_segment(const RowShape& shape, const std::byte* buffer, int64_t index, int64_t prompt_tokens) {
  const SegmentRange range = segment_range(index);
  const std::byte* const k = buffer + segments_bytes(shape, 0, index);
  return {.k = k,
          .v = k + static_cast<uint64_t>(range.rows) * shape.k_bytes(),
          .position = static_cast<int32_t>(range.begin),
          .rows = static_cast<int32_t>(std::min(range.rows, prompt_tokens - range.begin)),
          .stride_rows = static_cast<int32_t>(range.rows)};
}

// Where the row `first` and those after it, up to the end of its segment, go.
KvRows rows_from(const RowShape& shape, std::byte* buffer, int64_t first) {
  const int64_t index = segment_of(first);
  const SegmentRange range = segment_range(index);
  const uint64_t row = static_cast<uint64_t>(first - range.begin), dim = static_cast<uint64_t>(shape.head_dim);
  std::byte* const k = buffer + segments_bytes(shape, 0, index);
  std::byte* const v = k + static_cast<uint64_t>(range.rows) * shape.k_bytes();
  return {.k = k + row * dim * dtype_bytes(shape.k_type),
          .v = v + row * dim * dtype_bytes(shape.v_type),
          .row_stride = shape.head_dim,
          .head_stride = range.rows * shape.head_dim};
}

// Prefill's buffers must not go while a stream still uses them, also when an exception takes them away.
class DrainBeforeGoing {
 public:
  DrainBeforeGoing(Stream& compute, KvCache& cache, PrefixRun* prefix)
      : compute_(compute), cache_(cache), prefix_(prefix) {}
  DrainBeforeGoing(const DrainBeforeGoing&) = delete;
  DrainBeforeGoing& operator=(const DrainBeforeGoing&) = delete;
  ~DrainBeforeGoing() {
    if (prefix_ != nullptr) prefix_->end_reads();
    drain(compute_);
    cache_.drain();
  }

 private:
  Stream& compute_;
  KvCache& cache_;
  PrefixRun* prefix_;
};

// Reports progress as groups finish, a few groups behind the host, and says when to stop.
class Pace {
 public:
  Pace(Device& device, Stream& stream, Progress* progress, const std::atomic<bool>* interrupt)
      : stream_(stream), progress_(progress), interrupt_(interrupt) {
    for (std::unique_ptr<Event>& event : events_) event = device.make_event();
  }
  // A group has been enqueued; with it, `done` units of the stage are. False: stop.
  bool group(int64_t done) {
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

std::optional<int32_t> Session::prefill(std::span<const int32_t> ids, Progress* progress,
                                        const std::atomic<bool>* interrupt) {
  CHECK(static_cast<int64_t>(ids.size()) == options_.prompt_tokens && rows() == 0);
  allocate();
  bool finished = false;
  {
    Carver size(nullptr);
    layout_.carve_prefill(size);
    DeviceBuffer memory = device_.allocate(size.used_bytes(), "prefill");
    DeviceBuffer buffer = device_.allocate(plan_.layer_buffer_bytes, "the layer that prefill builds");
    PinnedBuffer staging = device_.allocate_pinned(PrefillStaging::bytes(options_.prompt_tokens), "the prompt");
    const DrainBeforeGoing guard(compute_, *cache_, options_.prefix);
    Carver carver(memory.data());
    PrefillWork work = layout_.carve_prefill(carver);
    work.layer_buffer = buffer.data();
    upload_prompt(ids, &work, staging);
    embed_prompt(work);
    finished = prefill_layers(work, progress, interrupt) && prefill_draft(ids, progress, interrupt);
    const uint64_t row_bytes = static_cast<uint64_t>(config_.hidden) * dtype_bytes(weights_.dtype());
    const std::byte* const last =
        static_cast<std::byte*>(work.hidden) + static_cast<uint64_t>(layout_.computed_rows() - 1) * row_bytes;
    compute_.copy(step_.hidden, last, row_bytes, Link::kWithinDevice, "last row");
    compute_.synchronize();
    cache_->finish_prefill(options_.prompt_tokens);
    if (finished && partial_) partial_->finish_prefill(*cache_, compute_);
  }  // prefill's memory goes before decode's is taken
  if (!finished) return std::nullopt;
  allocate_passes();
  if (plan_.ring_slots > 0) {
    streamer_ = std::make_unique<KvStreamer>(device_, *cache_, plan_.ring_slots, plan_.ring_slot_bytes);
  }
  host_.draw_positions[0] = static_cast<int32_t>(options_.prompt_tokens);
  compute_.copy_small(step_.inputs.tokens, host_inputs_.data(), step_.path_offset, Link::kHostToDevice, "inputs");
  draw(make_pass(step_.layer, step_.inputs.positions, 1, ProductPath::kDecode));
  bring_samples(1);
  return host_result_.samples[0];
}

void Session::upload_prompt(std::span<const int32_t> ids, PrefillWork* to, const PinnedBuffer& staging) {
  const PrefillWork& work = *to;
  Carver carver(staging.data());
  const PrefillStaging host = PrefillStaging::carve(carver, options_.prompt_tokens);
  std::copy(ids.begin(), ids.end(), host.ids);
  for (int64_t i = 0; i < options_.prompt_tokens; ++i) host.positions[i] = static_cast<int32_t>(i);
  compute_.copy(work.ids, host.ids, ids.size_bytes(), Link::kHostToDevice, "prompt");
  compute_.copy(work.positions, host.positions, ids.size_bytes(), Link::kHostToDevice, "positions");
  for (int64_t i = 0; i < work.segment_count; ++i) {
    host.segments[i] = built_segment(shape_, work.layer_buffer, i, options_.prompt_tokens);
  }
  to->host_segments = {host.segments, static_cast<size_t>(work.segment_count)};
  compute_.copy(work.segments, host.segments, static_cast<uint64_t>(work.segment_count) * sizeof(KvSegment),
                Link::kHostToDevice, "segments");
}

void Session::embed_prompt(const PrefillWork& work) {
  embedding({.ids = work.ids + layout_.saved_rows(),
             .table = weights_.embedding(),
             .out = work.hidden,
             .type = weights_.dtype(),
             .rows = layout_.computed_rows(),
             .vocab = config_.vocab,
             .hidden = config_.hidden},
            compute_);
}

bool Session::prefill_layers(const PrefillWork& work, Progress* progress, const std::atomic<bool>* interrupt) {
  const int64_t prompt = options_.prompt_tokens, group = layout_.prefill_group(), saved = layout_.saved_rows();
  PrefixRun* const prefix = options_.prefix;
  std::shared_ptr<Event> left = device_.make_event();  // the layer buffer is free
  Pace pace(device_, compute_, progress, interrupt);
  if (progress) progress->begin("prefill", "tokens", prompt);
  if (progress && saved > 0) progress->skip(saved);
  bool go_on = begin_prefix();
  for (int64_t layer = 0; layer < config_.layers && go_on; ++layer) {
    const TraceSpan span(compute_, {"layer", layer});
    if (prefix != nullptr && !prefix->bring_layer(layer, work.layer_buffer, *left, compute_)) {
      go_on = false;
      break;
    }
    if (options_.draft != nullptr) options_.draft->prefill_layer({layer, work.hidden, prompt - saved, saved});
    int64_t rows = 0;  // of a group; the groups lie at absolute multiples
    for (int64_t first = saved; first < prompt && go_on; first += rows) {
      rows = std::min(group - first % group, prompt - first);
      prefill_group_rows(work, layer, first, rows, *left);
      go_on = pace.group(saved + (layer * (prompt - saved) + first - saved + rows) / config_.layers);
    }
    if (partial_ && go_on) {
      partial_->fill_layer(layer, prompt, work.host_segments, scoring_queries(work.layer, rows, 1), compute_);
    }
    if (prefix != nullptr) left = device_.make_event();  // the saver waits for each layer's own
    cache_->store_layer(layer, prompt, work.layer_buffer, compute_, *left);
    if (prefix != nullptr && go_on) prefix->layer_stored(layer, *cache_, work.layer_buffer, left);
  }
  compute_.synchronize();
  if (progress) progress->update(prompt);
  if (progress) progress->end();
  return go_on;
}

// What is saved for the draft comes before all else.
bool Session::begin_prefix() {
  if (options_.prefix == nullptr) return true;
  options_.prefix->begin(device_);
  const std::vector<PromptStates> states =
      options_.draft != nullptr ? options_.draft->prompt_states() : std::vector<PromptStates>();
  return options_.prefix->bring_draft(states, compute_);
}

bool Session::prefill_draft(std::span<const int32_t> ids, Progress* progress, const std::atomic<bool>* interrupt) {
  if (options_.draft == nullptr) return true;
  if (options_.prefix != nullptr) {
    std::shared_ptr<Event> made = device_.make_event();
    compute_.record(*made);
    options_.prefix->draft_made(options_.draft->prompt_states(), std::move(made));
  }
  return options_.draft->finish_prefill(ids, progress, interrupt);
}

void Session::prefill_group_rows(const PrefillWork& work, int64_t layer, int64_t first, int64_t rows,
                                 const Event& layer_left) {
  const TraceSpan span(compute_, {"from row", first});
  const uint64_t row_bytes = static_cast<uint64_t>(config_.hidden) * dtype_bytes(weights_.dtype());
  std::byte* const hidden =
      static_cast<std::byte*>(work.hidden) + static_cast<uint64_t>(first - layout_.saved_rows()) * row_bytes;
  const Pass pass = make_pass(work.layer, work.positions + first, rows, ProductPath::kPrefill);
  qkv_product(pass, layer, hidden);
  if (first == layout_.saved_rows()) compute_.wait(layer_left);
  for (int64_t row = 0; row < rows;) {  // a group may lie in several segments
    const int64_t here = std::min(rows - row, segment_range(segment_of(first + row)).end() - (first + row));
    rotate_rows(pass, row, here, rows_from(shape_, work.layer_buffer, first + row));
    row += here;
  }
  {
    const TraceSpan attention(compute_, "attention");
    prefill_attention({.shape = attention_shape(pass),
                       .q = pass.work.qkv,
                       .segments = work.segments,
                       .out = pass.work.attention,
                       .segment_count = work.segment_count,
                       .first_position = first},
                      compute_);
  }
  layer_output(pass, layer, hidden);
}

}  // namespace headrace
