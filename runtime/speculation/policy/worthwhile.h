// Whether partial steps pay in a lossless run that does not stream. There a full pass may cost little more than a
// partial one, and its token is final. It compares the cost per confirmed token of both, continues with the cheaper
// one, and retries the other at growing intervals. Pure: costs are passed in, and it has no clock.
#pragma once

#include <algorithm>
#include <cstdint>

namespace headrace {

class Worthwhile {
 public:
  // The next step should read the full KV and yield one token.
  bool plain() const { return plain_left_ > 0; }

  void record_plain(double ms) {
    // The first may include one-time work.
    plain_ms_ = plain_ms_ == 0 ? ms : std::min(ms, plain_ms_ + (ms - plain_ms_) / 4);
    plain_left_ = std::max<int64_t>(0, plain_left_ - 1);
  }
  // Partial steps and the refresh that committed `tokens` of theirs.
  void record_cycle(double ms, int64_t tokens) {
    if (ms <= plain_ms_ * static_cast<double>(tokens)) {
      pause_ = kFirstPause;
      return;
    }
    plain_left_ = pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
  }

 private:
  static constexpr int64_t kFirstPlain = 2, kFirstPause = 16, kLongestPause = 1024;
  int64_t plain_left_ = kFirstPlain, pause_ = kFirstPause;
  double plain_ms_ = 0;
};

}  // namespace headrace
