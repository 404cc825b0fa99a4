// Fingerprints of weights that have been read before, in a cache's folder: weights_fingerprint() reads all of them,
// which takes as long as loading does, and the next start does both again. They are known by the files that they come
// from (name, place, size, times), as git knows what it need not look at again. Owns nothing. Thread: one at a time.
#pragma once

#include "runtime/model/tensor_source.h"
#include "runtime/prefix/piece.h"
#include "runtime/prefix/store.h"

namespace headrace {

// weights_fingerprint(source, threads), or what a start before this one has written down for the same files. Writes
// it down where `store` writes; not for files that have been changed within the last seconds, which may be changed
// once more without their times showing it. What cannot be read or written there is of no harm.
PrefixKey known_fingerprint(const TensorSource& source, int threads, const PrefixStore& store);

}  // namespace headrace
