// Work that is enqueued repeatedly, such as the few hundred kernels of a step. On CUDA, the second use of a key records
// a CUDA graph, and later uses launch it, which removes the host's cost and the gaps between kernels. On the CPU, and
// while a trace records, the work is enqueued directly. Owns the most recently used graphs; launches must have run
// before it is destroyed. Thread: one at a time, the one that enqueues on the stream.
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
  // Everything that the enqueued calls depend on: equal keys mean the same calls with the same parameters. Values that
  // change between runs are in the memory that the calls read.
  using Key = std::array<int64_t, 4>;

  explicit Replay(size_t most_graphs = 8);

  // enqueue() enqueues kernels and copies on `stream` alone; the stream must always be the same. While recorded it must
  // not record or wait for events (CudaStream::mark() and join() are no such), synchronize or allocate, so one-time
  // work (checks of products) must be done before. Exceptions of enqueue() pass through.
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
  // Dropped unless finished.
  class Recording {
   public:
    explicit Recording(Stream& stream);
    ~Recording();
    std::unique_ptr<CudaGraph> finish();

   private:
    CudaStream* stream_;
  };

  Entry* find(Stream& stream, const Key& key);  // null: enqueue directly
  void launch(const Entry& entry);

  const size_t most_graphs_;
  std::vector<Entry> entries_;
  uint64_t uses_ = 0;
  int64_t launches_ = 0;
};

}  // namespace headrace
