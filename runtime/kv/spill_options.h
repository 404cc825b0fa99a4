// Where the part of the KV cache goes that host memory cannot hold (--spill), and what came of it. Values.
#pragma once

#include <cstdint>
#include <string>

#include "offload/disk/file_queue.h"
#include "offload/spill/read_depth.h"

namespace headrace {

struct SpillOptions {
  std::string folder;        // empty: nothing may live on disk
  uint64_t limit_bytes = 0;  // 0: what the folder's disk has free
  int slots = 0;             // of the pinned ring between disk and link; 0: the planner's
  FileQueueBody body = FileQueueBody::kAuto;
  ReadDepth depth{};  // of reads; 0: measured when a run first reads
};

// What a run has had on disk. Bytes of 0: nothing.
struct SpillUse {
  uint64_t file_bytes = 0;
  uint64_t prefill_written_bytes = 0, decode_written_bytes = 0, decode_read_bytes = 0;
  double checksum_ms = 0;                         // of a core, beside the decode steps: verifying what was read
  double verify_wait_ms = 0, verify_late_ms = 0;  // what that has cost the decode steps: SpillStats
  double read_busy_ms = 0;                        // that the disk had reads under way
  std::string folder, how;                        // "io_uring, O_DIRECT"
  ReadDepth depth{};                              // the limit that the reads had, and why; 0: nothing was read
  int reads_at_once = 0;  // at most: what of the depth the ring has room for, and the system runs
  double depth_ms = 0;    // that measuring it took: when the first span is read, mostly in the first decode step
};

}  // namespace headrace
