#include "runtime/session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/draft_tree.h"
#include "kernels/elementwise.h"
#include "runtime/prefill_work.h"

namespace headrace {
namespace {

constexpr uint64_t kScratchBytes = 64 * kMiB;  // of segment states, so that it is independent of the context

int64_t state_floats(const ModelConfig& c, int64_t rows) { return rows * c.heads * (c.head_dim + 2); }

AttentionState carve_state(const ModelConfig& c, int64_t rows, Carver& carver) {
  return {.o = carver.take<float>(rows * c.heads * c.head_dim), .ml = carver.take<float>(rows * c.heads * 2)};
}

}  // namespace

RowShape row_shape(const ModelConfig& config, DType k_type, DType v_type) {
  return {.layers = config.layers,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .k_type = k_type,
          .v_type = v_type};
}

Session::StepInputs Session::StepInputs::carve(Carver& carver, int64_t pass_rows, int64_t path_stride) {
  StepInputs inputs;
  for (int32_t** list : {&inputs.tokens, &inputs.positions, &inputs.draw_positions, &inputs.slots, &inputs.source}) {
    *list = carver.take<int32_t>(pass_rows);
  }
  inputs.committed = carver.take<int32_t>(1);
  inputs.first_row = carver.take<int32_t>(1);
  inputs.path = carver.take<int32_t>(pass_rows * path_stride);
  return inputs;
}

Session::StepResult Session::StepResult::carve(Carver& carver, int64_t pass_rows) {
  StepResult result;
  result.acceptance = carver.take<TreeAcceptance>(1);
  result.count = carver.take<int32_t>(1);
  result.parents = carver.take<int32_t>(kMaxTreeNodes);
  result.depths = carver.take<int32_t>(kMaxTreeNodes);
  result.scores = carver.take<float>(kMaxTreeNodes);
  result.samples = carver.take<int32_t>(pass_rows);
  return result;
}

uint64_t Session::StepResult::bytes(int64_t pass_rows) {
  Carver carver(nullptr);
  carve(carver, pass_rows);
  return carver.used_bytes();
}

bool Session::partial_on() const { return options_.partial.shape.serves(options_.context_tokens); }

int64_t Session::pass_rows() const { return options_.pass_rows + (partial_on() ? kMostPending : 0); }
int64_t Session::drawn_rows() const {  // what is ranked is drawn at once
  return std::min(pass_rows(), std::max(options_.drawn_rows, options_.grow_rows));
}
int64_t Session::logit_rows() const { return padded(drawn_rows()); }
uint64_t Session::ranked_bytes() const {
  return static_cast<uint64_t>(options_.grow_rows * kRankedTokens) * (sizeof(float) + sizeof(int32_t));
}
int64_t Session::path_stride() const { return std::min(pass_rows(), kTailWindow); }

// A product on CUDA reads and writes whole groups of rows; the CPU bodies need no padding.
int64_t Session::padded(int64_t rows) const {
  return device_.backend() == Backend::kCpu
             ? rows
             : static_cast<int64_t>(round_up(static_cast<uint64_t>(rows), kProductRowPadding));
}

int64_t Session::prefill_group() const {
  if (options_.prefill_group > 0) return options_.prefill_group;
  return device_.backend() == Backend::kCpu ? kCpuPrefillGroup : kCudaPrefillGroup;
}

// `carver`: what lasts for the run; `later`: what only passes need, and prefill has the room of.
Session::StepWork Session::carve_step(Carver& carver, Carver& later) const {
  const int64_t rows = padded(pass_rows()), table = options_.context_tokens;
  const uint64_t type_bytes = dtype_bytes(weights_.dtype());
  StepWork work;
  work.result = StepResult::carve(carver, pass_rows());
  const uint64_t before = carver.used_bytes();
  work.inputs = StepInputs::carve(carver, pass_rows(), path_stride());
  work.path_offset = carver.used_bytes() - before -
                     round_up(static_cast<uint64_t>(pass_rows() * path_stride()) * sizeof(int32_t), 256);
  work.inv_freq = carver.take<float>(config_.head_dim / 2);
  work.cos_sin = carver.take<float>(table * config_.head_dim);
  work.hidden = carver.take_bytes(static_cast<uint64_t>(rows * config_.hidden) * type_bytes);
  std::byte* const layer = later.take_bytes(layer_work_bytes(config_, weights_.dtype(), rows));
  if (layer != nullptr) work.layer = layer_work(config_, weights_.dtype(), rows, layer);
  const uint64_t one = static_cast<uint64_t>(state_floats(config_, 1)) * sizeof(float);
  const int64_t most = pass_rows() * kMaxPrefixSegments;
  work.scratch_rows = std::clamp(static_cast<int64_t>(kScratchBytes / one), pass_rows(), most);
  work.state = carve_state(config_, pass_rows(), later);
  work.scratch = carve_state(config_, work.scratch_rows, later);
  work.logits = later.take<float>(logit_rows() * config_.vocab);
  work.sample_workspace = later.take_bytes(sample_workspace_bytes(drawn_rows(), config_.vocab));
  if (options_.grow_rows > 0) {
    work.ranked = later.take_bytes(ranked_bytes());
    work.rank_workspace =
        later.take_bytes(top_log_probs_workspace_bytes(options_.grow_rows, config_.vocab, kRankedTokens));
  }
  return work;
}

// Device memory beside the KV cache, of each phase, and how it grows.
void Session::plan_work(PlanInput* input) const {
  Carver step(nullptr), later(nullptr), prefill(nullptr);
  carve_step(step, later);
  carve_prefill(prefill);
  const auto products = [&](int64_t rows, ProductPath path) {
    return product_bytes(config_, weights_.dtype(), compute_, rows, path);
  };
  const int64_t group = std::min(computed_rows(), prefill_group());
  const uint64_t choice =
      partial_on() ? PartialKv::work_bytes(shape_, options_.partial.shape, options_.context_tokens) : 0;
  const uint64_t work = whole_pages(step.used_bytes()) + pointer_bytes() + choice;
  const uint64_t table_row = static_cast<uint64_t>(config_.head_dim) * sizeof(float);
  const uint64_t hidden_row = static_cast<uint64_t>(config_.hidden) * dtype_bytes(weights_.dtype());
  input->decode_work = {.bytes = work + whole_pages(later.used_bytes()) + products(pass_rows(), ProductPath::kDecode),
                        .per_context_row = table_row};
  input->prefill_work = {.bytes = work + products(group, ProductPath::kPrefill) + whole_pages(prefill.used_bytes()),
                         .per_context_row = table_row,
                         .per_prompt_row = hidden_row + 2 * sizeof(int32_t)};
}

// Pinned memory beside the KV cache.
uint64_t Session::pinned_work_bytes() const {
  Carver inputs(nullptr);
  StepInputs::carve(inputs, pass_rows(), path_stride());
  uint64_t bytes = whole_pages(inputs.used_bytes()) + pointer_bytes() + whole_pages(result_bytes()) +
                   whole_pages(prefill_staging_bytes(options_.prompt_tokens));
  if (partial_on()) bytes += PartialKv::pinned_bytes(shape_) + whole_pages(ranked_bytes());
  if (options_.prefix != nullptr) bytes += options_.prefix->pinned_bytes(device_.backend());
  return bytes;
}

// With the tokens behind it.
uint64_t Session::result_bytes() const {
  return StepResult::bytes(pass_rows()) + static_cast<uint64_t>(pass_rows()) * sizeof(int32_t);
}

uint64_t Session::pointer_bytes() const {
  return whole_pages(2 * static_cast<uint64_t>(shape_.layers) * sizeof(void*));
}

// 0 without --spill.
uint64_t Session::disk_free_bytes() const {
  if (options_.spill.folder.empty()) return 0;
  const uint64_t free = folder_free_bytes(options_.spill.folder), limit = options_.spill.limit_bytes;
  return std::max<uint64_t>(1, limit == 0 ? free : std::min(free, limit));
}

MemoryPlan Session::make_session_plan() const {
  PlanInput input;
  input.rows = shape_;
  input.prompt_rows = options_.prompt_tokens;
  input.context_rows = options_.context_tokens;
  input.pass_rows = pass_rows();
  input.mode = options_.kv;
  input.disk_free = disk_free_bytes();
  input.disk_slots = options_.spill.slots;
  input.vram_free = device_.vram().free_bytes();
  input.host_free = device_.host_mem().free_bytes();
  if (device_.backend() == Backend::kCpu) input.total_free = input.host_free;
  plan_work(&input);
  input.pinned_work_bytes = pinned_work_bytes();
  if (options_.draft != nullptr) {
    const DraftMemory draft = options_.draft->memory();
    input.last_layer_resident = options_.draft->reads_last_layer();
    input.decode_work.bytes += draft.lasting_bytes;
    input.prefill_work.bytes += draft.lasting_bytes + draft.prefill_bytes;
    input.pinned_work_bytes += draft.pinned_bytes;
  }
  if (partial_on()) input.partial = options_.partial.shape;
  input.ring_slots = options_.ring_slots;
  input.ring_slot_bytes = options_.ring_slot_bytes;
  return make_plan(input);
}

Session::Session(Device& device, Stream& compute, const ModelConfig& config, const Weights& weights,
                 const SessionOptions& options)
    : device_(device),
      compute_(compute),
      config_(config),
      weights_(weights),
      options_(options),
      shape_(row_shape(config, options.k_type, options.v_type)) {
  CHECK(options.pass_rows > 0 && pass_rows() <= kMaxPassNodes, "pass_rows=", options.pass_rows);
  CHECK(options.grow_rows == 0 || partial_on(), "grow_rows=", options.grow_rows);
  CHECK(prefill_group() % kPrefixTile == 0, "prefill_group=", prefill_group());
  plan_ = make_session_plan();
}

void Session::begin_host_memory(uint64_t beside_bytes) {
  const uint64_t ring = static_cast<uint64_t>(plan_.disk_slots) * whole_pages(plan_.disk_slot_bytes);
  const uint64_t free = device_.host_mem().free_bytes(), own = whole_pages(plan_.host_bytes) + ring;
  if (host_memory_.begun() || free < beside_bytes || free - beside_bytes < own) return;
  make_spill_file();
  take_host_memory();
}

void Session::make_spill_file() {
  if (plan_.disk_bytes == 0 || spill_file_) return;
  spill_file_ = std::make_unique<SpillFile>(device_, SpillFileOptions{.folder = options_.spill.folder,
                                                                      .bytes = plan_.disk_bytes,
                                                                      .grain_bytes = segments_bytes(shape_, 0, 1),
                                                                      .slots = plan_.disk_slots,
                                                                      .slot_bytes = plan_.disk_slot_bytes,
                                                                      .body = options_.spill.body,
                                                                      .depth = options_.spill.depth});
}

void Session::take_host_memory() {
  const uint64_t piece_bytes = KvCache::host_piece_bytes(plan_, options_.host_piece_bytes);
  host_memory_ = PinnedLater(device_, plan_.host_bytes, piece_bytes, "the KV cache in host memory");
}

void Session::allocate() {
  make_spill_file();
  if (!host_memory_.begun()) take_host_memory();
  Carver size(nullptr), later(nullptr), host_size(nullptr);
  carve_step(size, later);
  StepInputs::carve(host_size, pass_rows(), path_stride());
  step_memory_ = device_.allocate(size.used_bytes(), "the buffers of a step");
  host_inputs_ = device_.allocate_pinned(host_size.used_bytes(), "the inputs of a step");
  host_results_ = device_.allocate_pinned(result_bytes(), "the result of a step");
  if (options_.grow_rows > 0) host_ranked_ = device_.allocate_pinned(ranked_bytes(), "what a step ranked");
  Carver carver(step_memory_.data()), none(nullptr), host_carver(host_inputs_.data()), results(host_results_.data());
  step_ = carve_step(carver, none);
  host_ = StepInputs::carve(host_carver, pass_rows(), path_stride());
  host_result_ = StepResult::carve(results, pass_rows());
  cache_ = std::make_unique<KvCache>(device_, shape_, plan_, pass_rows(),
                                     KvCacheRooms{.host = std::move(host_memory_), .disk = std::move(spill_file_)});
  if (partial_on()) {
    partial_ = std::make_unique<PartialKv>(device_, shape_, options_.partial, options_.context_tokens);
  }
  upload_rope_table();
  if (options_.draft != nullptr) {
    options_.draft->allocate(compute_);
    options_.draft->attach(*cache_);
  }
}

void Session::allocate_passes() {
  Carver size(nullptr), later_size(nullptr);
  carve_step(size, later_size);
  pass_memory_ = device_.allocate(later_size.used_bytes(), "the buffers of a pass");
  Carver carver(step_memory_.data()), later(pass_memory_.data());
  step_ = carve_step(carver, later);
}

Session::~Session() {  // before the memory goes
  if (options_.prefix != nullptr) options_.prefix->abandon();
  drain(compute_);
}

void Session::upload_rope_table() {
  fill_rope_table({.rope = &config_.rope,
                   .head_dim = config_.head_dim,
                   .max_positions = config_.max_positions,
                   .rows = options_.context_tokens,
                   .inv_freq = step_.inv_freq,
                   .cos_sin = step_.cos_sin},
                  compute_);
}

Pass Session::make_pass(const LayerWork& work, const int32_t* positions, int64_t rows, ProductPath path) {
  return {.config = &config_,
          .weights = &weights_,
          .work = work,
          .positions = positions,
          .cos_sin = step_.cos_sin,
          .table_rows = options_.context_tokens,
          .k_type = options_.k_type,
          .v_type = options_.v_type,
          .rows = rows,
          .path = path,
          .stream = &compute_};
}

std::vector<float> Session::logits(int64_t rows) {
  CHECK(rows <= logit_rows() && step_rows_ <= drawn_rows(), "rows=", rows, " of ", step_rows_);
  const uint64_t bytes = static_cast<uint64_t>(rows * config_.vocab) * sizeof(float);
  PinnedBuffer host = device_.allocate_pinned(bytes, "logits for the host");
  compute_.copy(host.data(), step_.logits, bytes, Link::kDeviceToHost, "logits");
  compute_.synchronize();
  return {host.as<float>(), host.as<float>() + rows * config_.vocab};
}

}  // namespace headrace
