// The division of a spilled file. Grain: the unit of the file, all of one size. Extent: consecutive grains that are
// written and read together. Request: the part of an extent that is read or written by one request to the disk. Block:
// the unit of a checksum; requests are whole blocks. Values; pure functions.
#pragma once

#include <cstdint>

#include "cache/base.h"

namespace headrace {

struct Extent {
  uint64_t offset = 0, bytes = 0;  // in the file
};

class SpillCut {
 public:
  // Measured with fio --direct=1 --ioengine=io_uring --bs=1m on a virtual disk: 1.0 GB/s with 4 requests in flight, 1.2
  // to 1.3 with 16 and 32, no more with 64 (an H200's disk: 2.69 GB/s with 32, 1.99 with 64). Requests of 2 MiB were
  // slower. `headrace profile --disk` measures a disk.
  static constexpr uint64_t kRequestBytes = kMiB;

  // Requests are as close to kRequestBytes as grains allow: several grains, or a part of one.
  explicit SpillCut(uint64_t grain_bytes);

  uint64_t grain_bytes() const { return grain_bytes_; }
  // The size of the request that begins `done` bytes into the extent.
  uint64_t request_bytes(const Extent& extent, uint64_t done) const;
  uint64_t requests(uint64_t extent_bytes) const;

  uint64_t blocks(uint64_t file_bytes) const { return file_bytes / grain_bytes_ * grain_blocks_; }
  // The number of the block that begins at this offset of the file.
  uint64_t block(uint64_t offset) const;
  uint64_t block_bytes(uint64_t offset) const;

 private:
  uint64_t grain_bytes_, request_bytes_, block_bytes_, grain_blocks_;
};

}  // namespace headrace
