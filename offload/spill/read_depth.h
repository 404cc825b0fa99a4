// How many reads of a disk are to be under way at once: kMinReadDepth, or more where a measurement says that more
// bring more. Values; pure functions.
#pragma once

#include <span>
#include <string>

namespace headrace {

constexpr int kMinRequests = 8;  // that a rate stands on, to count

// What a disk has given with so many reads under way.
struct DepthRate {
  int depth = 0;
  double gb_per_s = 0;
  int requests = kMinRequests;  // that it is the rate of
  bool operator==(const DepthRate&) const = default;
};

struct ReadDepth {
  int depth = 0;      // 0: not known
  std::string why{};  // "measured at start: 32 at once 1.20, 64 1.25 GB/s"
};

// Smaller depths are neither selected nor tried, because a trial on an idle disk does not predict them: a step's reads
// pause whenever the ring is full and resume late, since the thread that submits them also waits for the link or for a
// driver lock. Measured with bench/spill_step_bench on an H200 whose idle disk read 2.71, 2.62, 2.38 and 1.98 GB/s with
// 4, 8, 16 and 32 at once: a step took 1048 ms with 4, 988 with 16 and 910 with 32.
constexpr int kMinReadDepth = 32;

// The least depth with at least 97% of the best rate, of the depths from kMinReadDepth on: the others do not count.
// Of a depth that stands there several times, its best counts, as other work on a disk only ever slows it. Where a
// depth has no rate of enough requests there is no choice: kMinReadDepth, and the reason says so. Depth 0 if no rate
// counts. `how`: "measured at start".
ReadDepth choose_depth(std::span<const DepthRate> rates, const std::string& how);

}  // namespace headrace
