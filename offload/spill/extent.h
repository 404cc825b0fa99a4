// How a spilled file is cut. Grains: what it is made of, all of one size. An extent: some of them, one after the other,
// which are written and read for one purpose. A request: what of an extent the disk is asked for at once. A block: what
// a checksum covers; requests are of whole blocks. Values; pure functions.
#pragma once

#include <cstdint>

#include "cache/base.h"

namespace headrace {

struct Extent {
  uint64_t offset = 0, bytes = 0;  // in the file
};

class SpillCut {
 public:
  // Measured with fio --direct=1 --ioengine=io_uring --bs=1m on a virtual disk: 4 under way read 1.0 GB/s, 16 and 32
  // read 1.2 to 1.3, 64 read no more (an H200's disk: 2.69 GB/s with 32, 1.99 with 64); requests of 2 MiB read less.
  // `headrace profile --disk` has the table of a disk.
  static constexpr uint64_t kRequestBytes = kMiB;

  // Requests are as near to kRequestBytes as grains go: some grains, or a part of one.
  explicit SpillCut(uint64_t grain_bytes);

  uint64_t grain_bytes() const { return grain_bytes_; }
  uint64_t most_request_bytes() const { return request_bytes_; }
  // Of the request that begins `done` bytes into the extent.
  uint64_t request_bytes(const Extent& extent, uint64_t done) const;
  uint64_t requests(uint64_t extent_bytes) const;

  uint64_t blocks(uint64_t file_bytes) const { return file_bytes / grain_bytes_ * grain_blocks_; }
  // The block that begins there, in the file.
  uint64_t block(uint64_t offset) const;
  uint64_t block_bytes(uint64_t offset) const;

 private:
  uint64_t grain_bytes_, request_bytes_, block_bytes_, grain_blocks_;
};

}  // namespace headrace
