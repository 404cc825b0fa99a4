#include "runtime/session.h"

#include <algorithm>
#include <utility>

namespace headrace {

Session::Session(Device& device, Stream& compute, const ModelConfig& config, const Weights& weights,
                 const SessionOptions& options)
    : device_(device),
      compute_(compute),
      config_(config),
      weights_(weights),
      layout_(device, compute, config, weights, options),
      options_(layout_.options()),
      shape_(layout_.shape()),
      plan_(layout_.plan()) {}

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
  layout_.carve_step(size, later);
  layout_.carve_inputs(host_size);
  step_memory_ = device_.allocate(size.used_bytes(), "the buffers of a step");
  host_inputs_ = device_.allocate_pinned(host_size.used_bytes(), "the inputs of a step");
  host_results_ = device_.allocate_pinned(layout_.result_bytes(), "the result of a step");
  if (options_.grow_rows > 0) host_ranked_ = device_.allocate_pinned(layout_.ranked_bytes(), "what a step ranked");
  Carver carver(step_memory_.data()), none(nullptr), host_carver(host_inputs_.data()), results(host_results_.data());
  step_ = layout_.carve_step(carver, none);
  host_ = layout_.carve_inputs(host_carver);
  host_result_ = layout_.carve_result(results);
  cache_ = std::make_unique<KvCache>(device_, shape_, plan_, layout_.pass_rows(),
                                     KvCacheRooms{.host = std::move(host_memory_), .disk = std::move(spill_file_)});
  if (layout_.partial_on()) {
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
  layout_.carve_step(size, later_size);
  pass_memory_ = device_.allocate(later_size.used_bytes(), "the buffers of a pass");
  Carver carver(step_memory_.data()), later(pass_memory_.data());
  step_ = layout_.carve_step(carver, later);
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
  CHECK(rows <= layout_.logit_rows() && step_rows_ <= layout_.drawn_rows(), "rows=", rows, " of ", step_rows_);
  const uint64_t bytes = static_cast<uint64_t>(rows * config_.vocab) * sizeof(float);
  PinnedBuffer host = device_.allocate_pinned(bytes, "logits for the host");
  compute_.copy(host.data(), step_.logits, bytes, Link::kDeviceToHost, "logits");
  compute_.synchronize();
  return {host.as<float>(), host.as<float>() + rows * config_.vocab};
}

}  // namespace headrace
