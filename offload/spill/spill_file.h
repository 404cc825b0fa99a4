// What memory cannot hold, in one unnamed file of a fixed size (docs/design.md, section 9). It is written once, from
// device memory, and read repeatedly ahead of its reader, both through one ring of pinned slots. The whole file has
// checksums, computed on write and verified on every read: take() returns the bytes that were written or throws an
// Error(kStorage) that names the wrong ones.
//
// Owns the file, the slots, the thread that keeps the disk busy (span_queue) and the one that verifies beside it
// (span_verifier). Threads: one writes; one takes and releases, which may be another than the one that begins and stops
// the reads. Nothing is allocated by write(), take() and release().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/base.h"
#include "offload/device/device.h"
#include "offload/disk/file_queue.h"
#include "offload/spill/extent.h"
#include "offload/spill/read_depth.h"

namespace headrace {

struct SpillFileOptions {
  std::string folder;
  uint64_t bytes = 0;        // of the file
  uint64_t grain_bytes = 0;  // that extents are made of; a multiple of File::kAlign
  int slots = 0;
  uint64_t slot_bytes = 0;  // the longest extent
  FileQueueBody body = FileQueueBody::kAuto;
  // 0: kMinReadDepth or twice that, as a trial on the file itself says before the first extent is read (depth_trial.h
  // has how long it takes). Neither a smaller file has one, nor a ring or a queue that could not have more under way.
  ReadDepth depth{};
  uint64_t least_measured_bytes = 256 * kMiB;
  std::function<uint64_t(std::span<const std::byte>)> sum{};  // for tests; empty: checksum()
};

enum class SpillVerify : uint8_t {
  kEveryRead,
  kNothing,  // what comes may be wrong: for measuring what verifying costs, and for nothing else
};

struct SpillStats {
  uint64_t file_bytes = 0, written_bytes = 0, read_bytes = 0;
  double checksum_ms = 0;  // of the verifier's thread: verifying what was read
  // In which take() waited for an extent that had arrived and was not verified.
  double verify_wait_ms = 0;
  // By which the last take() was later than it would have been without verifying (lateness.h): what is waited for, and
  // reads that begin later because a slot comes free later, but not what would have been waited for anyway: a disk that
  // brings one extent after the other is waited for, and each extent's verifying with it, and yet all of them are late
  // by one. At most verify_wait_ms. Not in it: what cores and memory do slower while that thread runs.
  double verify_late_ms = 0;
  double take_wait_ms = 0;  // in which take() waited: for the disk, or for verifying
  double read_busy_ms = 0;  // with reads under way, but for those of a trial
  double ring_full_ms = 0;  // without, as no slot was free: the disk was ahead of who takes
  std::string how;          // "io_uring, O_DIRECT"
  ReadDepth depth{};        // the limit that reads have; 0: nothing was read
  int reads_at_once = 0;    // at most: what of the depth the ring has room for, and the queue runs
  double depth_ms = 0;      // that measuring it took
};

class SpillFile {
 public:
  // Takes the space on the disk, and the slots from the device's host memory. Throws Error: kStorage, kDoesNotFit.
  SpillFile(Device& device, const SpillFileOptions& options);
  ~SpillFile();

  // Spans are of whole grains.

  // ---- writing ----
  // Enqueues on `out` the copy of the extent from `src`, device memory, and writes it behind it. Blocks while the disk
  // is behind by all slots. Throws what has failed so far. REQUIRES: no reads.
  void write(Extent to, const std::byte* src, Stream& out, TraceName what);
  // Blocks until all is in the file.
  void finish_writes();

  // ---- reading ----
  // From now on the extents are read in this order, again and again. REQUIRES: finish_writes().
  void begin_reads(std::vector<Extent> cycle);
  // The next extent in pinned memory, once it is there and right, until release(); null once the reads are stopped.
  const std::byte* take();
  // `in` has been given all that reads the extent taken last: its slot is filled again behind it.
  void release(Stream& in);
  // take() returns; blocks until the disk is quiet. What `in` still reads stays until the next begin_reads().
  void stop_reads() noexcept;

  // From the next extent that comes in on.
  void set_verify(SpillVerify verify);

  // Throws what has failed so far; never blocks.
  void check();
  SpillStats stats() const;

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

}  // namespace headrace
