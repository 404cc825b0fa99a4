// The disk tier for KV rows that host memory cannot hold (--spill): options and statistics. Values.
#pragma once

#include <cstdint>
#include <string>

#include "offload/spill/spill_file_options.h"

namespace headrace {

struct SpillOptions {
  std::string folder;        // empty: no disk tier
  uint64_t limit_bytes = 0;  // 0: the free space of the folder's disk
  int slots = 0;             // slots of the pinned ring between disk and link; 0: the planner's choice
  FileQueueBody body = FileQueueBody::kAuto;
};

// Disk use of a run.
struct SpillUse {
  SpillStats file{};  // of 0 bytes: none. Only decode steps read it
  uint64_t prefill_written_bytes = 0;
  std::string folder;
};

}  // namespace headrace
