// How many reads of a disk are to be under way at once: the fewest that bring nearly all that it gives. More wait
// longer, and hold slots of a ring that could have been filled. Values; pure functions.
#pragma once

#include <span>
#include <string>

namespace headrace {

// What a disk has given with so many reads under way.
struct DepthRate {
  int depth = 0;
  double gb_per_s = 0;
  bool operator==(const DepthRate&) const = default;
};

struct ReadDepth {
  int depth = 0;      // 0: not known
  std::string why{};  // "measured at start: 4 at once 1.02, 8 1.24, 16 1.25 GB/s"
};

// Fewer are never enough beside a GPU's work: the thread that orders reads waits for the link, too, or for a driver's
// lock, and the disk is to have something to do for those milliseconds. Measured with bench/spill_step_bench on an H200
// whose idle disk read as fast with 4 as with 32: a step took 1.27 times what the disk needed with 4, 1.16 with 16 and
// 1.04 with 32.
constexpr int kLeastReadDepth = 32;

// The least depth, from kLeastReadDepth on, with at least 97% of the best rate; of a depth that stands there several
// times, its best counts, as other work on a disk only ever slows it. Depth 0 if no rate is above 0. `how`: "measured
// at start".
ReadDepth choose_depth(std::span<const DepthRate> rates, const std::string& how);

}  // namespace headrace
