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

// weights_fingerprint(source, threads), or the result that an earlier start stored for the same files. Stores it if
// `store` is writable, but not for files changed within the last seconds, which may change again with the same times.
// Failures to read or write the stored result are ignored.
PrefixKey cached_fingerprint(const TensorSource& source, int threads, const PrefixStore& store);
constexpr size_t kMaxCachedFingerprints = 32;  // kept in a folder: the latest

// A checksum of samples of a file's content, for cases where its times do not change (FAT keeps no change time; a store
// to a mapping may not update times): a small file completely, of a large one a page of each 16 MiB and the last. None:
// it cannot be read.
std::optional<uint64_t> sampled_checksum(const std::string& path);

// Throws Error(kBadInput) that names the first file that has changed since it was stamped.
void refuse_changed(const std::vector<FileStamp>& files);

}  // namespace headrace
