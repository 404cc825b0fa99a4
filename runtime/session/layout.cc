#include "runtime/session/layout.h"

#include <algorithm>

#include "offload/disk/file.h"
#include "runtime/kv/row_copy.h"
#include "runtime/kv/window_rows.h"
#include "runtime/layers/product_bytes.h"
#include "runtime/speculation/pending_tree.h"

namespace headrace {
namespace {

constexpr uint64_t kScratchBytes = 64 * kMiB;  // of segment states, for any context

}  // namespace

SessionLayout::SessionLayout(Device& device, Stream& compute, const ModelConfig& config, const Weights& weights,
                             const SessionOptions& options)
    : device_(device),
      compute_(compute),
      config_(config),
      weights_(weights),
      options_(options),
      groups_(config),
      shape_(row_shape(config, options.k_type, options.v_type, weights.dtype())),
      windows_(headrace::window_shape(
          config, row_shape(config, options.k_type, options.v_type, weights.dtype(), StateGroup::kWindow),
          options.context_tokens, options.all_window_rows, options.prefill_rows(device.backend()))) {
  CHECK(options.pass_rows > 0 && pass_rows() <= kMaxPassNodes, "pass_rows=", options.pass_rows);
  CHECK(options.grow_rows == 0 || partial_on(), "grow_rows=", options.grow_rows);
  CHECK(options.most_pending > 0 && options.most_pending <= kMaxPending, "most_pending=", options.most_pending);
  CHECK(top_tokens() == 0 || config.vocab <= kMaxTopVocab, "vocab=", config.vocab);
  CHECK(prefill_group() % kPrefixTile == 0, "prefill_group=", prefill_group());
  CHECK(options.kept_rows >= 0 && options.kept_rows < options.prompt_tokens, "kept_rows=", options.kept_rows);
  CHECK(options.kept_rows == 0 || (options.prefix == nullptr && !scored()));
  CHECK(options.most_prompt_tokens == 0 || options.prompt_tokens <= options.most_prompt_tokens, "prompt of ",
        options.prompt_tokens);
  CHECK(options.most_snapshots >= kLeastSnapshots && (options.most_snapshots == kAllSnapshots || !options.prefix));
  CHECK(!groups_.need_snapshots() || saved_rows() % kDeltaChunkRows == 0, "saved_rows=", saved_rows());
  CHECK(groups_.recurrent_layers() == 0 || groups_.window_layers() == 0);  // snapshots have one kind of state
  CHECK(!scored() ||
        (options_.prefix == nullptr && static_cast<int64_t>(options_.scores->next.size()) == options_.prompt_tokens));
}

PromptShape SessionLayout::planned_prompt() const {
  if (options_.most_prompt_tokens == 0) return prompt();
  return {.tokens = options_.most_prompt_tokens, .saved = 0};
}

uint64_t SessionLayout::hidden_row_bytes() const {
  return static_cast<uint64_t>(config_.hidden) * dtype_bytes(weights_.dtype());
}

// A draft that reads layers' states (EAGLE-3) gets them a group at a time, which must begin at multiples of 64 rows; in
// runs that share rows only those with snapshots do. States that are compared are copied from the device.
bool SessionLayout::streams_states() const {
  const bool aligned = options_.draft == nullptr || options_.most_prompt_tokens == 0 || groups_.need_snapshots();
  return options_.host_states && aligned && !options_.compares() &&
         planned_prompt().computed() > kStateSlots * prefill_group();
}

int64_t SessionLayout::pass_rows() const { return options_.pass_rows + (partial_on() ? options_.most_pending : 0); }
int64_t SessionLayout::drawn_rows() const {  // ranked rows are drawn in one call
  return std::min(pass_rows(), std::max(options_.drawn_rows, options_.grow_rows));
}
int64_t SessionLayout::logit_rows() const { return padded(drawn_rows()); }
int64_t SessionLayout::top_tokens() const {
  return options_.log_probs == LogProbs::kNone ? 0 : std::min(kMaxTopTokens, config_.vocab);
}
uint64_t SessionLayout::log_probs_bytes() const {
  return top_tokens() > 0 ? StepLogProbs::bytes(pass_rows(), top_tokens()) : 0;
}
uint64_t SessionLayout::ranked_bytes() const {
  return static_cast<uint64_t>(options_.grow_rows * kRankedTokens) * (sizeof(float) + sizeof(int32_t));
}
uint64_t SessionLayout::rules_bytes() const {
  return options_.rules ? StepRules::bytes(pass_rows(), config_.vocab) : 0;
}
int64_t SessionLayout::path_stride() const { return std::min(pass_rows(), kTailWindow); }

WindowShape window_shape(const ModelConfig& config, const RowShape& rows, int64_t tokens, bool all, int64_t group) {
  WindowShape shape{.rows = rows};
  for (const LayerSpec& layer : config.layers) {
    if (layer.has_attention()) shape.window = std::max(shape.window, layer.attention().window);
  }
  if (rows.layers > 0) shape.slots = window_slots(all ? tokens : shape.window, tokens);
  // Layers that read these rows come when the layer is complete.
  if (!all && group > 0 && !config.shares_rows()) shape.built_rows = window_built_rows(shape.window, group);
  return shape;
}

RecurrentShape recurrent_shape(const ModelConfig& config, DType type, int64_t pass_rows) {
  for (const LayerSpec& layer : config.layers) {
    if (layer.has_attention()) continue;
    return {.layer = delta_shape(layer.delta_net()),
            .layers = StateGroups(config).recurrent_layers(),
            .pass_rows = pass_rows,
            .type = type};
  }
  return {};
}

RecurrentShape SessionLayout::recurrent_shape() const {
  RecurrentShape shape = headrace::recurrent_shape(config_, weights_.dtype(), pass_rows());
  shape.pending = partial_on();
  return shape;
}

SnapshotShape snapshot_shape(const ModelConfig& config, DType dtype, DType k_type, DType v_type) {
  const RowShape windows = row_shape(config, k_type, v_type, dtype, StateGroup::kWindow);
  if (windows.layers > 0) return SnapshotShape(window_shape(config, windows, 1));
  return SnapshotShape(recurrent_shape(config, dtype));
}
SnapshotShape SessionLayout::snapshot_shape() const {
  return headrace::snapshot_shape(config_, weights_.dtype(), options_.k_type, options_.v_type);
}

// The states behind a saved prefix are a snapshot for the next run, too. Windows are read from one.
std::vector<int64_t> SessionLayout::snapshots() const {
  std::vector<int64_t> positions;
  const bool shared = options_.most_prompt_tokens > 0;
  if (shared) {
    positions = snapshot_positions(options_.prompt_tokens, options_.snapshot_unit, options_.most_snapshots - 1);
  }
  if ((shared || groups_.window_layers() > 0) && saved_rows() > 0) positions.push_back(saved_rows());
  if (options_.prefix != nullptr) {
    const std::vector<int64_t> saved = options_.prefix->states_to_save();
    positions.insert(positions.end(), saved.begin(), saved.end());
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

int64_t SessionLayout::most_snapshots() const {
  if (!keeps_states()) return 0;
  if (options_.most_prompt_tokens == 0) return static_cast<int64_t>(snapshots().size());
  // The last position of the prompt may be one for kept rows and another one for saved prefixes: their units differ.
  return std::min(headrace::most_snapshots(options_.most_prompt_tokens), options_.most_snapshots) +
         (options_.prefix != nullptr ? 1 : 0);
}

uint64_t SessionLayout::snapshots_bytes() const {
  const int64_t count = most_snapshots();
  return count > 0 ? static_cast<uint64_t>(count) * StateSnapshots::bytes(snapshot_shape()) : 0;
}

uint64_t SessionLayout::matrices_bytes() const {
  if (device_.backend() == Backend::kCpu || options_.prefill_int8) return 0;
  uint64_t most = 0;
  for (int64_t layer = 0; layer < config_.layer_count(); ++layer) {
    const LayerWeights& weights = weights_.layer(layer);
    uint64_t all = 0, largest = 0;
    for (const Weight* weight : {&weights.qkv, &weights.output, &weights.gate_up, &weights.down}) {
      const uint64_t bytes = *weight == nullptr || weight->plain() ? 0 : unpacked_bytes(*weight, weights_.dtype());
      all += bytes;
      largest = std::max(largest, bytes);
    }
    most = std::max(most, options_.lean_prefill ? largest : all);
  }
  return most;
}

StepInputs SessionLayout::carve_inputs(BumpAllocator& allocator) const {
  return StepInputs::carve(allocator, pass_rows(), path_stride());
}
StepResult SessionLayout::carve_result(BumpAllocator& allocator) const {
  return StepResult::carve(allocator, pass_rows());
}

StepWork SessionLayout::carve_step(BumpAllocator& allocator, BumpAllocator& later) const {
  const int64_t rows = padded(pass_rows());
  const LayerWidths widths = LayerWidths::of(config_);
  StepWork work;
  work.result = carve_result(allocator);
  const uint64_t before = allocator.used_bytes();
  work.inputs = carve_inputs(allocator);
  work.path_offset = allocator.used_bytes() - before -
                     round_up(static_cast<uint64_t>(pass_rows() * path_stride()) * sizeof(int32_t), 256);
  work.rope = RopeTables::carve(config_.rope, config_.rope_sizes().head_dim, options_.context_tokens, allocator);
  if (config_.local_rope) {
    work.local_rope =
        RopeTables::carve(*config_.local_rope, config_.rope_sizes(true).head_dim, options_.context_tokens, allocator);
  }
  if (shape_.values_alone) {
    work.key_norms =
        allocator.take_bytes(static_cast<uint64_t>(shape_.layers * shape_.head_dim) * dtype_bytes(weights_.dtype()));
  }
  work.hidden = allocator.take<float>(rows * config_.hidden);
  work.layer = LayerWork::carve(widths, {device_.backend(), weights_.dtype(), DType::kF32, rows}, later);
  const RecurrentShape recurrent = recurrent_shape();
  if (recurrent.layers > 0) work.delta = DeltaWork::of_pass(recurrent.layer, pass_rows(), later);
  const uint64_t one = static_cast<uint64_t>(widths.q + 2 * widths.heads) * sizeof(float);  // of the states of a row
  const int64_t most = pass_rows() * kMaxPrefixSegments;  // a pass of fewer rows reads more segments a launch
  work.scratch_rows = std::clamp(static_cast<int64_t>(kScratchBytes / one), pass_rows(), most);
  work.state = carve_states(widths, pass_rows(), later);
  work.scratch = carve_states(widths, work.scratch_rows, later);
  if (partial_on() && options_.partial.shape.copy == DType::kInt4) {
    work.rotated_q = later.take_bytes(static_cast<uint64_t>(pass_rows() * widths.q) * dtype_bytes(weights_.dtype()));
  }
  work.logits = later.take<float>(logit_rows() * config_.vocab);
  work.sample_workspace = later.take_bytes(sample_workspace_bytes(drawn_rows(), config_.vocab));
  uint64_t ranking = 0;  // bytes of its workspace
  if (options_.grow_rows > 0) {
    work.ranked = later.take_bytes(ranked_bytes());
    ranking = top_log_probs_workspace_bytes(options_.grow_rows, config_.vocab, kRankedTokens);
  }
  if (top_tokens() > 0) {
    work.log_probs = StepLogProbs::carve(later, pass_rows(), top_tokens());
    ranking = std::max(ranking, top_log_probs_workspace_bytes(drawn_rows(), config_.vocab, top_tokens()));
  }
  if (ranking > 0) work.rank_workspace = later.take_bytes(ranking);
  if (options_.rules) work.rules = StepRules::carve(later, pass_rows(), config_.vocab);
  return work;
}

// Device memory of each phase in addition to the KV cache, and how it grows with the lengths.
void SessionLayout::plan_work(PlanInput* input) const {
  BumpAllocator step(nullptr), later(nullptr);
  carve_step(step, later);
  const PromptShape prompt = planned_prompt();
  const uint64_t prefill = carved_bytes([&](BumpAllocator& allocator) { carve_prefill(prompt, allocator); });
  const auto products = [&](int64_t rows, ProductPath path) {
    return product_bytes(config_, weights_, compute_, device_.threads(), rows, path, substitute().has_value());
  };
  const int64_t group = std::min(prompt.computed(), prefill_group());
  uint64_t prefill_products = products(group, ProductPath::kPrefill);
  if (options_.prefill_int8) {  // the CPU's threads have one room for both kinds of product
    prefill_products = std::max(prefill_products, int8_threads_bytes(config_, device_.backend(), device_.threads()));
  }
  if (scored()) prefill_products = std::max(prefill_products, products(kDrawnRows, ProductPath::kDecode));
  const uint64_t work = whole_pages(step.used_bytes()) + pointer_bytes() + partial_work_bytes() +
                        recurrent_shape().bytes() + WindowRows::bytes(windows_, pass_rows());
  const uint64_t passes = whole_pages(later.used_bytes()) + recurrent_shape().pass_bytes();
  uint64_t table_row = RopeTables::row_bytes(config_.rope, config_.rope_sizes().head_dim);
  if (config_.local_rope) table_row += RopeTables::row_bytes(*config_.local_rope, config_.rope_sizes(true).head_dim);
  input->decode_work = {.bytes = work + passes + products(pass_rows(), ProductPath::kDecode),
                        .per_context_row = table_row};
  const uint64_t state_row = streams_states() ? 0 : hidden_row_bytes();
  input->prefill_work = {.bytes = work + prefill_products + whole_pages(prefill),
                         .per_context_row = table_row,
                         .per_prompt_row = state_row + (scored() ? 4 : 2) * sizeof(int32_t) + int8_row_bytes()};
  if (streams_states()) {
    input->host_states = {.bytes = whole_pages(static_cast<uint64_t>(prompt.computed()) * hidden_row_bytes()),
                          .per_prompt_row = hidden_row_bytes()};
  }
}

// Work memory of a partial KV, in addition to its rows and summaries.
uint64_t SessionLayout::partial_work_bytes() const {
  if (!partial_on()) return 0;
  const PartialShape& partial = options_.partial.shape;
  if (partial.exact) return 0;
  if (partial.copy) return RowCopy::work_bytes(shape_, options_.context_tokens);
  return PartialKv::work_bytes(shape_, partial, options_.context_tokens);
}
uint64_t SessionLayout::partial_pinned_bytes() const {
  if (options_.partial.shape.exact) return 0;
  if (options_.partial.shape.copy) return RowCopy::pinned_bytes(shape_, options_.context_tokens);
  return PartialKv::pinned_bytes(shape_);
}

// Pinned memory in addition to the KV cache.
uint64_t SessionLayout::pinned_work_bytes() const {
  const uint64_t inputs = carved_bytes([&](BumpAllocator& allocator) { carve_inputs(allocator); });
  uint64_t bytes = whole_pages(inputs) + pointer_bytes() + whole_pages(result_bytes()) +
                   whole_pages(PrefillStaging::bytes(planned_prompt().tokens, segment_tables(), scored())) +
                   whole_pages(log_probs_bytes()) + whole_pages(rules_bytes()) + whole_pages(comparison_bytes());
  bytes += whole_pages(recurrent_shape().pinned_bytes()) + WindowRows::pinned_bytes(windows_);
  bytes += snapshots_bytes();
  if (partial_on()) bytes += partial_pinned_bytes() + whole_pages(ranked_bytes());
  if (options_.prefix != nullptr) bytes += options_.prefix->pinned_bytes(device_.backend());
  return bytes;
}

uint64_t SessionLayout::int8_row_bytes() const {
  if (!options_.prefill_int8 || !attends_in_int8(config_.attention())) return 0;
  return int8_kv_bytes(device_.backend(), kPrefixTile, shape_.kv_heads, shape_.head_dim) / kPrefixTile;
}

// States of kDrawnRows rows, and the logits of both runs: the first run counts them, too, so that the second fits.
uint64_t SessionLayout::comparison_bytes() const {
  const uint64_t row = hidden_row_bytes() + 2 * static_cast<uint64_t>(config_.vocab) * sizeof(float);
  return options_.compares() ? static_cast<uint64_t>(kDrawnRows) * row : 0;
}

uint64_t SessionLayout::result_bytes() const {
  return StepResult::bytes(pass_rows()) + static_cast<uint64_t>(pass_rows()) * sizeof(int32_t);
}

uint64_t SessionLayout::pointer_bytes() const {
  return whole_pages(2 * static_cast<uint64_t>(shape_.layers) * sizeof(void*));
}

// 0 without --spill.
uint64_t SessionLayout::disk_free_bytes() const {
  if (options_.spill.folder.empty()) return 0;
  const uint64_t free = folder_free_bytes(options_.spill.folder), limit = options_.spill.limit_bytes;
  return std::max<uint64_t>(1, limit == 0 ? free : std::min(free, limit));
}

PlanInput SessionLayout::plan_input() const {
  PlanInput input;
  input.rows = shape_;
  input.windows = windows_;
  input.two_buffers = input.last_layer_resident = config_.shares_rows();
  input.prompt_rows = planned_prompt().tokens;
  input.context_rows = options_.context_tokens;
  input.pass_rows = pass_rows();
  input.mode = options_.kv;
  input.lean_prefill = options_.lean_prefill;
  input.prefill_int8 = options_.prefill_int8;
  input.disk_free = disk_free_bytes();
  input.disk_slots = options_.spill.slots;
  input.vram_free = device_.vram().free_bytes();
  input.host_free = device_.host_mem().free_bytes();
  if (device_.backend() == Backend::kCpu) {
    input.total_free = input.host_free;
    const MemoryBudget& vram = device_.vram();  // without its own limit it shares host memory's
    if (vram.limit_bytes() != device_.host_mem().limit_bytes()) {
      input.vram_most = vram.limit_bytes() - vram.used_bytes();
    }
  }
  if (options_.weights != WeightsPlace::kDevice) add_weights(&input);
  if (options_.host_embedding) {
    input.host_embedding_bytes = weights_.movable_bytes();
    const uint64_t more = weights_.allocated() ? input.host_embedding_bytes : 0;  // else they take nothing yet
    input.vram_free += more;
    if (device_.backend() == Backend::kCpu) input.total_free += more;
  }
  plan_work(&input);
  input.pinned_work_bytes = pinned_work_bytes();
  const RecurrentShape recurrent = recurrent_shape();
  if (recurrent.layers > 0) {
    input.parts = {{"recurrent states", recurrent.bytes(), WorkPart::Of::kRun},
                   {partial_on() ? "what recurrent layers keep of pending tokens and passes"
                                 : "what recurrent layers keep of a pass",
                    recurrent.pass_bytes(), WorkPart::Of::kDecode},
                   {"snapshots of recurrent states", snapshots_bytes(), WorkPart::Of::kHost}};
  }
  if (groups_.window_layers() > 0) {
    input.parts = {{"rows of layers with a window", WindowRows::bytes(windows_, pass_rows()), WorkPart::Of::kRun},
                   {"snapshots of layers with a window", snapshots_bytes(), WorkPart::Of::kHost}};
  }
  if (options_.draft != nullptr) {
    const DraftMemory draft = options_.draft->memory();
    input.last_layer_resident = input.last_layer_resident || options_.draft->reads_last_layer();
    input.decode_work.bytes += draft.lasting_bytes;
    input.prefill_work.bytes += draft.lasting_bytes + draft.prefill_bytes;
    input.pinned_work_bytes += draft.pinned_bytes;
    input.parts.push_back({"the draft's KV cache and buffers", draft.lasting_bytes, WorkPart::Of::kRun});
  }
  if (partial_on()) input.partial = options_.partial.shape;
  input.remainders = options_.remainders.value_or(device_.backend() == Backend::kCuda);
  input.ring = options_.ring;
  return input;
}

PrefillWork SessionLayout::carve_prefill(const PromptShape& shape, BumpAllocator& allocator) const {
  const int64_t prompt = shape.tokens, computed = padded(shape.computed());
  const int64_t group = std::min(computed, prefill_group());
  PrefillWork work{};
  work.ids = allocator.take<int32_t>(prompt);
  work.positions = allocator.take<int32_t>(prompt);
  const bool streams = streams_states();
  std::byte* const states = allocator.take_bytes(
      static_cast<uint64_t>(streams ? kStateSlots * prefill_group() : computed) * hidden_row_bytes());
  if (streams) {
    work.state_slots = states;
  } else {
    work.hidden = states;
  }
  const DType type = weights_.dtype();
  LayerWidths widths = LayerWidths::of(config_);
  widths.token_layers = 1;
  widths.int8_experts = options_.prefill_int8 && !widths.experts_beside;
  work.layer = LayerWork::carve(widths, {device_.backend(), type, type, group}, allocator);
  const RecurrentShape recurrent = recurrent_shape();
  if (recurrent.layers > 0)
    work.delta = DeltaWork::of_prefill(recurrent.layer, std::min(shape.computed(), prefill_group()), allocator);
  const uint64_t matrices = matrices_bytes();
  work.matrices = matrices > 0 ? allocator.take_bytes(matrices) : nullptr;
  if (options_.prefill_int8) {
    work.int8 = Int8PrefillWork::carve(
        {.config = config_,
         .layer = {.backend = device_.backend(), .type = type, .rows = group, .lean = options_.lean_prefill},
         .prompt = prompt},
        allocator);
  }
  work.segments = allocator.take<KvSegment>(segment_tables() * segments_for(prompt));
  if (scored()) {
    work.next = allocator.take<int32_t>(prompt);
    work.log_probs = allocator.take<float>(prompt);
    const int64_t rows = std::min(computed, kDrawnRows);
    work.logits = allocator.take<float>(rows * config_.vocab);
    if (options_.compares()) {
      work.reference = allocator.take_bytes(static_cast<uint64_t>(rows) * hidden_row_bytes());
      work.reference_logits = allocator.take<float>(rows * config_.vocab);
    }
  }
  return work;
}

}  // namespace headrace
