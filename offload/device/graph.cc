#include "offload/device/graph.h"

#include <algorithm>
#include <utility>

#include "cache/base.h"
#include "offload/device/trace.h"

namespace headrace {

#ifdef NDEBUG
bool Replay::checks_keys_ = false;
#else
bool Replay::checks_keys_ = true;
#endif

void Replay::check_keys(bool on) { checks_keys_ = on; }

void Replay::check(const Key& key, uint64_t hash) {
  const auto [first, fresh] = hashes_.try_emplace(key, hash);
  CHECK(fresh || first->second == hash, "key ", key[0], " ", key[1], " ", key[2], " ", key[3],
        " stands for different calls");
}

Replay::Replay(size_t most_graphs) : most_graphs_(most_graphs) {
  CHECK(most_graphs > 0);
  entries_.reserve(most_graphs);
}

Replay::Entry* Replay::find(Stream& stream, const Key& key) {
  if (stream.backend() == Backend::kCpu) return nullptr;
  const Trace* const trace = stream.tracing().trace;
  if (trace != nullptr && trace->recording()) return nullptr;  // parts of a graph have no times
  ++uses_;
  auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  if (entry == entries_.end()) {
    if (entries_.size() < most_graphs_) {
      entries_.push_back({.key = key});
      entry = entries_.end() - 1;
    } else {
      entry = std::min_element(entries_.begin(), entries_.end(),
                               [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
      if (entry->graph != nullptr) stream.synchronize();  // it may still run
      *entry = {.key = key};
    }
  }
  entry->last_use = uses_;
  return &*entry;
}

void Replay::launch(const Entry& entry) {
  entry.graph->launch();
  ++launches_;
}

Replay::Recording::Recording(Stream& stream) : stream_(&cuda_stream(stream)) { stream_->begin_recording(); }

std::unique_ptr<CudaGraph> Replay::Recording::finish() { return std::exchange(stream_, nullptr)->end_recording(); }

Replay::Recording::~Recording() {
  if (stream_ != nullptr) stream_->drop_recording();
}

}  // namespace headrace
