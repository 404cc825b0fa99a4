#include "offload/spill/depth_trial.h"

#include <algorithm>

#include "cache/base.h"
#include "offload/host/clock.h"

namespace headrace {
namespace {

// A trial of one depth ends after so long, or, once it is long enough, with so many requests done: 2.5 GB/s in 40 ms
// are 95 of them, and 0.2 GB/s in 100 ms are 19. A second round makes up for a moment in which others had the disk; one
// that has taken long, on a slow disk, is not repeated.
constexpr double kTrialSeconds = 0.04, kLongestTrialSeconds = 0.1, kOneRoundSeconds = 0.3;
constexpr int kTrialRequests = 64, kRounds = 2;

// A rate over less is that of a few requests which happened to be done together.
constexpr double kMinSeconds = kTrialSeconds / 2;

}  // namespace

bool DepthTrial::has_room(const DepthTrialOptions& options) {
  return options.memory.size() / options.request_bytes >= uint64_t{kTrialDepths.back()} &&
         options.queue->concurrency() >= kTrialDepths.back();
}

DepthTrial::DepthTrial(const DepthTrialOptions& options) : options_(options) {
  CHECK(has_room(options) && !options.cycle.empty());
  for (uint64_t place = kTrialDepths.back(); place-- > 0;) free_.push_back(place);
}

std::vector<DepthRate> DepthTrial::run() {
  const HostClock::time_point start = HostClock::now();
  std::vector<DepthRate> rates;
  for (int round = 0; round < kRounds && seconds_since(start) < kOneRoundSeconds; ++round) {
    for (const int depth : kTrialDepths) {
      if (goes_on_) rates.push_back(measure(depth));
    }
    drain();
  }
  if (!goes_on_) rates.clear();
  return rates;
}

// From the moment when so many are under way, and the first of them is done, until the last one that counts is.
DepthRate DepthTrial::measure(int depth) {
  const HostClock::time_point begin = HostClock::now();
  HostClock::time_point first = begin, last = begin;
  uint64_t bytes = 0;
  int done = 0;
  for (; goes_on_; ++done) {
    while (goes_on_ && options_.queue->pending() < depth) submit_next();
    const uint64_t got = next_done().bytes;
    last = HostClock::now();
    if (done == 0) {
      first = last;
      continue;
    }
    bytes += got;
    const double took = std::chrono::duration<double>(last - begin).count();
    if (took >= kLongestTrialSeconds || (took >= kTrialSeconds && done >= kTrialRequests)) break;
  }
  const double seconds = std::chrono::duration<double>(last - first).count();
  return {.depth = depth,
          .gb_per_s = seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0,
          .requests = seconds >= kMinSeconds ? done : 0};
}

void DepthTrial::submit_next() {
  const Extent& extent = options_.cycle[extent_];
  const uint64_t size = std::min(options_.request_bytes, extent.bytes - done_), place = free_.back();
  free_.pop_back();
  goes_on_ = options_.goes_on();
  options_.queue->submit({.op = FileOp::kRead,
                          .offset = extent.offset + done_,
                          .data = options_.memory.data() + place * options_.request_bytes,
                          .bytes = size,
                          .tag = place});
  done_ += size;
  if (done_ == extent.bytes) extent_ = (extent_ + 1) % options_.cycle.size(), done_ = 0;
}

FileRequest DepthTrial::next_done() {
  const FileDone done = options_.queue->wait();
  options_.queue->check(done);
  free_.push_back(done.request.tag);
  return done.request;
}

void DepthTrial::drain() {
  while (options_.queue->pending() > 0) next_done();
}

}  // namespace headrace
