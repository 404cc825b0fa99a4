// Prefill, layer-major (docs/design.md, section 7): every group of the prompt goes through layer 0, then layer 1, …. A
// layer's K and V are built in a device buffer, attention reads them there, and the finished layer is copied to where
// it lives while the next begins: the copy takes a few hundredths of a layer's time, so one buffer is enough, and the
// next layer's first rows wait for it. Each row crosses the link once, outwards. Rows of a saved prefix are copied into
// the same buffer, once a layer, instead of being computed; everything after that is the same.
//
// One object a prompt; its memory lasts as long as run(). Thread: the session's.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "runtime/base/progress.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/kv/partial_kv.h"
#include "runtime/session/buffers.h"

namespace headrace {

// Who follows a long piece of work; each may be null.
struct Watcher {
  Progress* progress = nullptr;
  const std::atomic<bool>* interrupt = nullptr;  // set: stop after what is enqueued
};

class Prefill {
 public:
  // `partial`: null where the run has none. All that is referred to outlives this.
  Prefill(const SessionPlan& plan, const SessionBuffers& buffers, KvCache& cache, PartialKv* partial,
          const Watcher& watcher);

  // All chunks of the prompt through all layers, into the cache, the partial KV and the draft; the last row's state is
  // copied to the step's residual stream. False: it was interrupted, or a saved prefix is damaged().
  bool run(std::span<const int32_t> ids);

 private:
  void upload_prompt(std::span<const int32_t> ids, const PinnedBuffer& staging);
  void embed_prompt();
  bool layers();
  bool begin_prefix();
  bool draft(std::span<const int32_t> ids);
  LayerWeights layer_weights(int64_t layer);
  void group_rows(const LayerWeights& weights, int64_t first, int64_t rows, const Event& layer_left);

  const SessionLayout& layout_;
  const SessionOptions& options_;
  Stream& compute_;
  const SessionBuffers& buffers_;
  KvCache& cache_;
  PartialKv* const partial_;
  const Watcher watcher_;
  const uint64_t layer_buffer_bytes_;
  PrefillWork work_{};
};

}  // namespace headrace
