// Tries on a spilled file how many reads at once bring most: those of kTrialDepths, turn by turn, each for some dozen
// milliseconds of reads that follow each other as those of a run will. Borrows queue, memory and extents, and leaves
// the queue empty unless it throws. Thread: the one that has the queue.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "offload/disk/file_queue.h"
#include "offload/spill/extent.h"
#include "offload/spill/read_depth.h"

namespace headrace {

constexpr std::array<int, 2> kTrialDepths = {kMinReadDepth, 2 * kMinReadDepth};

struct DepthTrialOptions {
  FileQueue* queue = nullptr;     // with nothing under way
  std::span<std::byte> memory{};  // room for the deepest
  uint64_t request_bytes = 0;     // the longest
  std::span<const Extent> cycle{};
  std::function<bool()> goes_on{};  // asked before each request: false ends the trial
};

class DepthTrial {
 public:
  static bool has_room(const DepthTrialOptions& options);  // for the deepest
  // REQUIRES: has_room()
  explicit DepthTrial(const DepthTrialOptions& options);
  // Empty if it has not gone on to its end. Throws what the disk has failed with. Takes about 0.4 s at most, and what
  // the disk needs for the requests under way at the end of each of two rounds.
  std::vector<DepthRate> run();

 private:
  DepthRate measure(int depth);
  void submit_next();
  FileRequest next_done();
  void drain();

  const DepthTrialOptions options_;
  size_t extent_ = 0;  // where the next read is
  uint64_t done_ = 0;
  std::vector<uint64_t> free_;  // places in the memory, of request_bytes
  bool goes_on_ = true;
};

}  // namespace headrace
