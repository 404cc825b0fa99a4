// What can go wrong with a file, put in its way by tests: errors, short reads and writes, delays, flipped bits, the end
// of the process. Without any, each file operation costs one look at a pointer. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "offload/disk/file.h"

namespace headrace {

struct FileFault {
  int error = 0;                  // an errno, in the place of the operation
  uint64_t at_most = UINT64_MAX;  // bytes that a read or a write gets done
};

class FileFaults {
 public:
  virtual ~FileFaults() = default;
  // Before each operation, and again before what a short one left undone. May sleep.
  virtual FileFault before(FileOp op, const std::string& path, uint64_t offset, uint64_t bytes) = 0;
  // A read is done.
  virtual void after_read(const std::string& /*path*/, uint64_t /*offset*/, std::span<std::byte> /*data*/) {}
};

// In the way of all files from now on; returns what was. Null: nothing is. The faults outlive all operations.
FileFaults* set_file_faults(FileFaults* faults);
FileFaults* file_faults();

}  // namespace headrace
