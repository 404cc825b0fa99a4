// Attention of a decode pass in one layer (kernels/attention/op.h): first the tail, then segments, whose states are
// folded into the tail's from left to right. Asynchronous.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "kernels/attention/op.h"
#include "offload/device/stream.h"

namespace headrace {

// Rows of one layer that tail_attention() reads, as there.
struct TailRows {
  const void *ring_k, *ring_v, *pass_k, *pass_v;
  int64_t ring_rows, pass_rows;
};

// The queries of a pass in one layer, as in TailAttentionParams, with room for their states.
struct LayerQueries {
  AttentionShape shape;
  const void* q;
  const int32_t *positions, *committed, *path;
  int64_t path_stride;
  AttentionState state, scratch;
  const int32_t* first = nullptr;
  const float* sinks = nullptr;
};
// Attends to the tail. Returns the call for the prefix, without segments and output.
PrefixAttentionParams attend_tail(const LayerQueries& queries, const TailRows& rows, Stream& stream);

// How segments are folded.
struct PrefixLaunches {
  using Seen = std::function<void(std::span<const KvSegment>)>;
  int64_t segments;  // most of a launch
  int64_t end_row = std::numeric_limits<int64_t>::max();
  int64_t first_row = 0;  // rows before it are left out; a multiple of kPrefixTile
  bool in_parts = true;   // attention_part_rows(); false: a segment has one state
  Seen seen{};            // called with the segments of each launch, whole ones, after it
};

// Collects segments in order for launches of the prefix kernel.
class PrefixFold {
 public:
  PrefixFold(const PrefixAttentionParams& params, PrefixLaunches launches, Stream& stream);

  // Ignored if it is empty or begins at end_row or beyond.
  void add(const KvSegment& segment);
  void flush();
  // Call if other work is enqueued between the tail and the segments.
  void follow() { params_.beside_tail = false; }
  // Launches with the remaining segments, even if there are none, and writes `out`.
  void finish(void* out);

 private:
  void launch();

  PrefixAttentionParams params_;
  const PrefixLaunches launches_;
  std::vector<KvSegment> whole_;  // the segments of this launch, for `seen`
  Stream& stream_;
};

}  // namespace headrace
