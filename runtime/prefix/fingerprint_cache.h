// Fingerprints of weights that were read before, stored in the cache folder. weights_fingerprint() reads all weights,
// which takes as long as loading them. A later start recognises the files by path, inode, size and times, as git's
// index does, and by samples of their content. Owns nothing. Thread: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/model/tensor_source.h"
#include "runtime/prefix/block.h"
#include "runtime/prefix/store.h"

namespace headrace {

// weights_fingerprint(source, threads), or what a start before this one has written down for the same files. Writes
// it down where `store` writes; not for files that have been changed within the last seconds, which may be changed
// once more without their times showing it. What cannot be read or written there is of no harm.
PrefixKey cached_fingerprint(const TensorSource& source, int threads, const PrefixStore& store);
constexpr size_t kMaxCachedFingerprints = 32;  // that a folder remembers: the last ones

// Of a file's content, where its times may not tell (FAT keeps no time of change, a store to a mapping may leave those
// that there are): a small file as a whole, of a large one a page of each 16 MiB and the last. None: it cannot be read.
std::optional<uint64_t> sampled_checksum(const std::string& path);

// Throws Error(kBadInput) that names the first which is not what it was when it was stamped.
void refuse_changed(const std::vector<FileStamp>& files);

}  // namespace headrace
