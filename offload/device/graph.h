// Work that is enqueued repeatedly, such as the few hundred kernels of a step. On CUDA, the second use of a key records
// a CUDA graph, and later uses launch it, which removes the host's cost and the gaps between kernels. On the CPU, and
// while a trace records, the work is enqueued directly. A key that lacks a value would replay other calls than were
// asked for: check_keys() finds that out, on both backends. Owns the most recently used graphs; launches must have run
// before it is destroyed. Thread: one at a time, the one that enqueues on the stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "offload/device/call_hash.h"
#include "offload/device/cuda_stream.h"

namespace headrace {

class Replay {
 public:
  // Everything that the enqueued calls depend on: equal keys mean the same calls with the same parameters. Values that
  // change between runs are in the memory that the calls read.
  using Key = std::array<int64_t, 4>;

  explicit Replay(size_t most_graphs = 8);

  // Whether each use of a key enqueues its calls (on CUDA it records them anew) and CHECKs that they are those of its
  // first use, by a hash (call_hash.h). Costs what replaying saves; on in debug builds, and for tests. Of all
  // objects; call it while none is used.
  static void check_keys(bool on);

  // enqueue() enqueues kernels and copies on `stream` alone; the stream must always be the same. While recorded it must
  // not record or wait for events (CudaStream::mark() and join() are no such), synchronize or allocate, so one-time
  // work (checks of products) must be done before. Exceptions of enqueue() pass through.
  template <typename Enqueue>
  void run(Stream& stream, const Key& key, const Enqueue& enqueue) {
    Entry* const entry = find(stream, key);
    if (entry == nullptr && stream.backend() == Backend::kCpu) return enqueue_calls(stream, key, enqueue);
    if (entry == nullptr || !entry->seen) {  // not hashed: one-time work may be among it
      enqueue();
      if (entry != nullptr) entry->seen = true;
      return;
    }
    if (entry->graph == nullptr || checks_keys_) {
      Recording recording(stream);
      enqueue_calls(stream, key, enqueue);
      std::unique_ptr<CudaGraph> graph = recording.finish();
      if (entry->graph == nullptr) entry->graph = std::move(graph);
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

  // Hashes what is enqueued during its life.
  class Listening {
   public:
    explicit Listening(Stream& stream) : stream_(stream) { stream_.hash_calls(&hash_); }
    ~Listening() { stream_.hash_calls(nullptr); }
    Listening(const Listening&) = delete;
    Listening& operator=(const Listening&) = delete;
    uint64_t hash() const { return hash_.value(); }

   private:
    Stream& stream_;
    CallHash hash_;
  };

  template <typename Enqueue>
  void enqueue_calls(Stream& stream, const Key& key, const Enqueue& enqueue) {
    if (!checks_keys_) return enqueue();
    const Listening listening(stream);
    enqueue();
    check(key, listening.hash());
  }
  void check(const Key& key, uint64_t hash);

  Entry* find(Stream& stream, const Key& key);  // null: enqueue directly
  void launch(const Entry& entry);

  static bool checks_keys_;
  const size_t most_graphs_;
  std::map<Key, uint64_t> hashes_;  // of calls, if keys are checked
  std::vector<Entry> entries_;
  uint64_t uses_ = 0;
  int64_t launches_ = 0;
};

}  // namespace headrace
