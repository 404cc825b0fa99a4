#include "runtime/text/chunk_cache.h"

#include "cache/base.h"

namespace headrace {
namespace {

constexpr size_t kMaxBytes = 4 * kMiB;  // a fifth more with what a map adds

}  // namespace

bool ChunkCache::append(std::string_view chunk, std::vector<int32_t>* ids) const {
  const MutexLock lock(mutex_);
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end()) return false;
  ids->insert(ids->end(), found->second.begin(), found->second.end());
  return true;
}

void ChunkCache::add(std::string_view chunk, std::span<const int32_t> ids) {
  const size_t bytes = chunk.size() + ids.size_bytes();
  if (bytes > kMaxBytes / 8) return;  // a text without spaces
  const MutexLock lock(mutex_);
  if (bytes_ + bytes > kMaxBytes) {
    chunks_.clear();
    bytes_ = 0;
  }
  if (chunks_.try_emplace(std::string(chunk), ids.begin(), ids.end()).second) bytes_ += bytes;
}

}  // namespace headrace
