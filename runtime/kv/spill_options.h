// The disk tier for KV rows that host memory cannot hold (--spill): options and statistics. Values.
#pragma once

#include <cstdint>
#include <string>

#include "offload/disk/file_queue.h"

namespace headrace {

struct SpillOptions {
  std::string folder;        // empty: no disk tier
  uint64_t limit_bytes = 0;  // 0: the free space of the folder's disk
  int slots = 0;             // slots of the pinned ring between disk and link; 0: the planner's choice
  FileQueueBody body = FileQueueBody::kAuto;
};

// Disk use of a run. 0 bytes: none.
struct SpillUse {
  uint64_t file_bytes = 0;
  uint64_t prefill_written_bytes = 0, decode_written_bytes = 0, decode_read_bytes = 0;
  double checksum_ms = 0;     // of a core, beside the decode steps: verifying what was read
  double verify_wait_ms = 0;  // in which the decode steps waited for that
  double read_busy_ms = 0;    // that the disk had reads under way
  std::string folder, how;    // "io_uring, O_DIRECT"
  int reads_at_once = 0;      // at most
};

}  // namespace headrace
