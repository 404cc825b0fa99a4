// --max-overturned: when what partial steps accept may be final. Each refresh of an approximate run says how many of
// the pending tokens it would have overturned; while their share, with older ones weighing less, is above the limit,
// the run is lossless. It is approximate again at half of the limit. Counts alone decide, so the same command gives the
// same text. Pure.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/speculation/verify_options.h"

namespace headrace {

class OverturnLimit {
 public:
  explicit OverturnLimit(double most) : most_(most), rejected_(kBelieved * most / 2) {}

  // Of a refresh that judged pending tokens.
  void record(const VerifyOutcome& found) {
    const double kept = std::exp(-static_cast<double>(found.judged) / kMemory);
    judged_ = judged_ * kept + static_cast<double>(found.judged);
    rejected_ = rejected_ * kept + static_cast<double>(found.rejected);
    exceeded_ = exceeded_ ? share() > most_ / 2 : share() > most_;
  }
  double share() const { return rejected_ / judged_; }
  bool exceeded() const { return exceeded_; }

 private:
  static constexpr double kMemory = 256;    // judged tokens after which a token weighs 1/e
  static constexpr double kBelieved = 100;  // tokens that half of the limit is taken to be known from at the start
  const double most_;
  double judged_ = kBelieved, rejected_;
  bool exceeded_ = false;
};

}  // namespace headrace
