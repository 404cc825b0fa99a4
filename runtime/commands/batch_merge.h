// Joins the results of a batch's shards. Thread: one.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

struct MergeOutcome {
  int64_t shards = 0, requests = 0, failed = 0;
};

// Writes `results` from its part files (shard_path()): one line for each request of `requests`, in its order, then the
// error lines of requests without a custom_id. The file appears whole or not at all. Throws Error: kBadInput if a part
// or an answer is missing, or a part answers a request twice or one that there is not; kUsage if `results` exists or a
// part is still being written; kStorage.
MergeOutcome merge_batch(const std::string& requests, const std::string& results);

}  // namespace headrace
