// File faults for tests: errors, short reads and writes, delays, flipped bits, the end of the process. Without faults
// each file operation costs one pointer check. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "offload/disk/file.h"

namespace headrace {

struct FileFault {
  int error = 0;                  // an errno, instead of the operation
  uint64_t at_most = UINT64_MAX;  // bytes that a read or a write transfers
};

class FileFaults {
 public:
  virtual ~FileFaults() = default;
  // Called before each operation, and again before the rest of a short one. May sleep.
  virtual FileFault before(FileOp op, const std::string& path, uint64_t offset, uint64_t bytes) = 0;
  // Called after each read.
  virtual void after_read(const std::string& /*path*/, uint64_t /*offset*/, std::span<std::byte> /*data*/) {}
};

// Applies to all files from now on; returns the previous faults. Null: none. The faults must outlive all operations.
FileFaults* set_file_faults(FileFaults* faults);
FileFaults* file_faults();

}  // namespace headrace
