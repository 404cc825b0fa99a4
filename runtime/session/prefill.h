// Prefill, layer-major (docs/design.md, section 7): all groups of the prompt pass through layer 0, then layer 1, …. K
// and V of a layer are built in a device buffer, where attention reads them, and the finished layer is copied to its
// tiers while the next layer begins. The copy takes a few hundredths of a layer's time, so one buffer is enough; the
// next layer's first rows wait for the copy. Each row crosses the link once, to the host. Rows of a saved prefix are
// read into the same buffer, once a layer, instead of being computed. So are the previous run's rows in host memory, on
// the disk or in a low-bit type; its resident segments of exact rows are read, and continued, in place.
//
// Low-bit rows are quantised a group at a time, right after RoPE, into a second buffer, and the buffer that attention
// reads gets their values. So prefill, the tail, block summaries and drafts use the values that are stored, and rows of
// a saved prefix, which are dequantised into that buffer, have the same bits.
//
// A layer whose weights are in host memory arrives while the layers before it are computed, and crosses the link once a
// prompt.
//
// Where the plan has the prompt's states in host memory, each group's are fetched before the group is computed
// (prompt_states.h). The arithmetic is the same.
//
// The states of recurrent layers are copied to snapshots as the rows pass the positions of these, and the rows of
// layers with a window once such a layer is built. A prompt whose first rows are not computed begins with the states
// and windows of the snapshot behind them.
//
// In 8 bits (int8_prefill.h) the products and the attention to earlier tiles have other kernels; rows are built, stored
// and restored alike.
//
// One object per prompt; run() allocates and frees its memory. Thread: the executor's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "runtime/model/weight_streamer.h"
#include "runtime/session/attend.h"
#include "runtime/session/group_progress.h"
#include "runtime/session/layer_rows.h"
#include "runtime/session/prompt_states.h"

namespace headrace {

class Prefill {
 public:
  // All references must outlive this. No rows stream.
  Prefill(Sequence& sequence, const SessionLayout& layout, const SessionBuffers& buffers, WeightStreamer& weights,
          const Watcher& watcher);

  // Runs the prompt through all layers and fills the cache, the partial KV and the draft. Copies the state of the last
  // row to the step's residual stream. False: it was interrupted, or a saved prefix is damaged().
  bool run(std::span<const int32_t> ids);

 private:
  // Rows [first, first + rows) of a layer, whose products run together.
  struct Group {
    int64_t layer;
    StatePlace at;
    const LayerWeights& weights;
    int64_t first, rows;
  };
  void upload_prompt(std::span<const int32_t> ids, const PrefillStaging& host);
  void embed(int64_t first, int64_t rows, void* to);
  bool layers(LayerRows& rows);
  void show_draft(int64_t layer);
  void show_draft(int64_t layer, int64_t first, int64_t rows, const void* states);
  int64_t groups() const;                   // of a layer
  int64_t group_rows(int64_t first) const;  // of the group that begins there
  LayerWeights layer_weights(int64_t layer);
  void compute_group(const Group& group, LayerRows& built);
  void mix(const Pass& pass, const Group& group, LayerRows& built);
  void attend(const Pass& pass, const Group& group, const LayerRows& rows);
  void recur(const Pass& pass, const Group& group);
  void begin_states();
  bool restore_states();
  void save_states(int64_t layer);
  void fill_partial(int64_t layer, const StatePlace& at, const LayerRows& rows);
  ScoringQueries last_queries(int64_t layer, int64_t count) const;
  bool begin_prefix();
  bool draft(std::span<const int32_t> ids);
  void keep_last_state();

  const SessionLayout& layout_;
  const SessionOptions& options_;
  Stream& compute_;
  const SessionBuffers& buffers_;
  Sequence& sequence_;
  WeightStreamer& weights_;
  const Watcher watcher_;
  PrefillWork work_{};
  std::unique_ptr<HostStates> host_states_;  // null: the states are on the device
  int64_t last_group_ = 0;                   // rows of the group that was computed last
  int64_t int8_rows_ = 0;                    // rows of the layer that are in 8 bits
};

}  // namespace headrace
