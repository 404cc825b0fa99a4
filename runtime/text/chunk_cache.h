// Ids of chunks of text that were encoded before: of two prompts that begin alike, the second looks up what they share.
// Owns copies of both, 5 MiB at most. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "offload/host/thread_annotations.h"

namespace headrace {

class ChunkCache {
 public:
  // Appends the chunk's ids. False: they are not known.
  bool append(std::string_view chunk, std::vector<int32_t>* ids) const;
  // When the cache is full, it starts over.
  void add(std::string_view chunk, std::span<const int32_t> ids);

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  mutable Mutex mutex_;
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> chunks_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;  // of text and ids
};

}  // namespace headrace
