// Work that is enqueued again and again, such as a step's some hundred kernels: on CUDA, from the second time that a
// key is seen, it is recorded as a CUDA graph and launched as one, so that neither the host nor the gaps between
// kernels cost; on the CPU, and while a trace records, it is just enqueued. Owns the graphs, the most recently used
// ones; what was launched must have run before they go. Thread: one at a time, that which enqueues on the stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "offload/device/cuda_stream.h"

namespace headrace {

class Replay {
 public:
  // All that the enqueued calls depend on: with equal keys they are the same calls with the same parameters. Whatever
  // changes between runs is in the memory that they read.
  using Key = std::array<int64_t, 4>;

  explicit Replay(size_t most_graphs = 8);

  // enqueue() enqueues kernels and copies on `stream`, the same one always, and on no other. When it is recorded it
  // must not record or wait for events, synchronize or allocate: whatever the first time of a kind does beside
  // (products are checked) is done by then. An error of its comes out as it is.
  template <typename Enqueue>
  void run(Stream& stream, const Key& key, const Enqueue& enqueue) {
    Entry* const entry = find(stream, key);
    if (entry == nullptr || !entry->seen) {
      enqueue();
      if (entry != nullptr) entry->seen = true;
      return;
    }
    if (entry->graph == nullptr) {
      Recording recording(stream);
      enqueue();
      entry->graph = recording.finish();
    }
    launch(*entry);
  }

  int64_t launches() const { return launches_; }  // of graphs

 private:
  struct Entry {
    Key key{};
    bool seen = false;
    uint64_t last_use = 0;
    std::unique_ptr<CudaGraph> graph{};
  };
  // Dropped if it is not finished.
  class Recording {
   public:
    explicit Recording(Stream& stream);
    ~Recording();
    std::unique_ptr<CudaGraph> finish();

   private:
    CudaStream* stream_;
  };

  Entry* find(Stream& stream, const Key& key);  // null: just enqueue
  void launch(const Entry& entry);

  const size_t most_graphs_;
  std::vector<Entry> entries_;
  uint64_t uses_ = 0;
  int64_t launches_ = 0;
};

}  // namespace headrace
