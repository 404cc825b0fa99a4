// The options and the statistics of a SpillFile. Plain values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "offload/disk/file_queue.h"

namespace headrace {

// Most reads and writes in flight. Fewer are slower, although an idle disk may suggest otherwise: a step's reads
// pause whenever the ring is full and resume late, since the thread that submits them also waits for the link or for a
// driver lock. On an H200 whose idle disk read 2.71, 2.62, 2.38 and 1.98 GB/s with 4, 8, 16 and 32 in flight, a step
// took 1048 ms with 4, 988 with 16 and 910 with 32. With 64 no measured disk was faster (extent.h).
constexpr int kReadDepth = 32;

struct SpillFileOptions {
  std::string folder;
  uint64_t bytes = 0;        // of the file
  uint64_t grain_bytes = 0;  // unit of extents; a multiple of File::kAlign
  int slots = 0;
  uint64_t slot_bytes = 0;  // the longest extent
  FileQueueBody body = FileQueueBody::kAuto;
  int depth = kReadDepth;
  std::function<uint64_t(std::span<const std::byte>)> sum{};  // for tests; empty: checksum()
};

struct SpillStats {
  uint64_t file_bytes = 0, written_bytes = 0, read_bytes = 0;
  double checksum_ms = 0;  // time of the verifier's thread
  // Time that take() waited for an extent that had arrived but was not verified.
  double verify_wait_ms = 0;
  double read_busy_ms = 0;  // time with reads in flight
  std::string how;          // "io_uring, O_DIRECT"
  int reads_at_once = 0;    // effective depth: min(requested, ring capacity, the queue's concurrency)
};

}  // namespace headrace
