// Which chunks of the text a draft attends to beside its window: those that the target attends to most (SpecExtend
// section 2.2, its cross-model retrieval cache). The score of a chunk is the mean attention, over heads and rows, of
// the query of a recently accepted token; keys are the target's own, so no pass computes anything for it. Unlike in the
// paper, whose only layer is the last one, the mean is over a layer half way up and one at three quarters where these
// are on the device: such layers find what an answer quotes (docs/decisions.md). Scores also come from prefill and
// refreshes, and the first chunk and the recent rows are always seen. A choice can change the speed of a run, never its
// text. Owns device memory. Thread: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/segment.h"
#include "offload/device/device.h"
#include "runtime/draft/draft.h"
#include "runtime/draft/window.h"

namespace headrace {

class BumpAllocator;
class KvCache;

struct RetrievalSetup {
  RetrievalShape shape{};                         // 0 chunks: none
  int64_t context_rows = 0;                       // of the target
  int64_t pass_rows = 0;                          // of a pass, at most
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // of the target's last layer
  uint64_t query_bytes = 0;                       // of a row of PassQueries, at most
};

class Retrieval {
 public:
  static uint64_t bytes(const RetrievalSetup& setup);  // device memory
  Retrieval(Device& device, const RetrievalSetup& setup, Stream& stream);

  // Before the first pass: chooses the layers. The last one is resident.
  void attach(const KvCache& target);
  // Keeps those of its layers until the next pass. Asynchronous.
  void keep_queries(const PassQueries& queries, Stream& stream);
  // Scores the committed rows of `target` if it is time to. Asynchronous.
  void observe_query(const TargetQuery& query, const KvCache& target, Stream& stream);
  // Whether rows were scored since the last choose().
  bool due() const { return due_; }
  struct Choice {
    const int32_t* chunks = nullptr;  // [count], ascending, device memory
    int64_t count = 0;
  };
  // The first chunk, and the best of those after it that end at or before row `end`. None before the first look back.
  Choice choose(int64_t end, Stream& stream);

 private:
  struct Views;
  static Views carve(const RetrievalSetup& setup, BumpAllocator* allocator);
  void score(const void* q, DType type, int64_t layer, bool add, const KvCache& target, Stream& stream);

  const RetrievalSetup setup_;
  DeviceBuffer memory_;
  float* scores_;
  std::byte* workspace_;
  int32_t* chosen_;
  // The layers that are scored, but the last, and their queries; none: the last layer is.
  struct Scored {
    int64_t layer = 0;
    std::byte* queries = nullptr;
    uint64_t row_bytes = 0;
  };
  static constexpr size_t kLayers = 2;
  std::vector<Scored> layers_;
  std::array<std::byte*, kLayers> queries_{};
  int64_t scored_rows_ = 0, passes_ = 0;
  bool due_ = false;
  std::vector<KvSegment> segments_;  // reused
};

}  // namespace headrace
