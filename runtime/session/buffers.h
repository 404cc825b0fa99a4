// The buffers of an executor: a step's inputs and results on host and device, the residual stream, the RoPE table, and
// the work buffers of passes. Owns the memory; others see views. Thread: the executor's.
#pragma once

#include <cstdint>
#include <span>

#include "offload/device/device.h"
#include "runtime/kv/made_keys.h"
#include "runtime/layers/forward.h"
#include "runtime/session/layout.h"

namespace headrace {

class SessionBuffers {
 public:
  // Allocates nothing. `layout` must outlive this.
  explicit SessionBuffers(const SessionLayout& layout) : layout_(layout) {}
  // The buffers of the whole run. Enqueues the computation of the RoPE table. Called once.
  void allocate();
  void allocate_passes();  // call once prefill's memory is freed

  const StepWork& step() const { return step_; }
  // Pinned memory that the host writes before a step and reads after it.
  const StepInputs& host_inputs() const { return host_; }
  const StepResult& host_result() const { return host_result_; }
  const StepLogProbs& host_log_probs() const { return host_log_probs_; }
  const std::byte* host_ranked() const { return host_ranked_.data(); }
  const int32_t* host_tree_tokens() const;  // after the result

  // A pass of the decode path reads and writes step().hidden, and one of prefill its own states.
  Pass make_pass(const LayerWork& work, const int32_t* positions, int64_t rows, ProductPath path) const;
  // Where a layer's K is made of V: enqueues a copy of its norm, which stays when the weights of the layer do not.
  void keep_key_norm(const StatePlace& layer, const LayerWeights& weights) const;
  KeyMaker key_maker(int64_t layer) const;  // of a layer of the KV cache, with that norm
  // Enqueues a copy of the first `bytes` of the inputs.
  void upload_inputs(uint64_t bytes) const;
  // Enqueues a copy of pass rows to inputs.source, and returns it. The rows of the call before have been copied.
  const int32_t* upload_source(std::span<const int32_t> rows) const;
  // Enqueue copies of a step's results to the host.
  void download_samples(int64_t rows) const;
  void download_result(int64_t nodes) const;  // the whole result and the tree's tokens
  void download_ranked() const;
  void download_log_probs() const;

 private:
  const SessionLayout& layout_;
  DeviceBuffer step_memory_, pass_memory_;
  PinnedBuffer host_inputs_memory_, host_results_, host_ranked_, host_log_probs_memory_;
  StepInputs host_{};
  StepResult host_result_{};
  StepLogProbs host_log_probs_;
  StepWork step_{};
};

}  // namespace headrace
