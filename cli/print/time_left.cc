#include "cli/print/time_left.h"

#include <numeric>
#include <utility>

#include "cli/print/format.h"

namespace headrace {

TimeLeft::TimeLeft(std::vector<uint64_t> bytes)
    : bytes_(std::move(bytes)), left_bytes_(std::accumulate(bytes_.begin(), bytes_.end(), uint64_t{0})) {}

void TimeLeft::passed(size_t index) { left_bytes_ -= bytes_.at(index); }

std::string TimeLeft::answered(size_t index) {
  passed(index);
  answered_bytes_ += bytes_.at(index);
  if (left_bytes_ == 0 || answered_bytes_ == 0) return "";
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  return "; " + format_time_left(seconds * static_cast<double>(left_bytes_) / static_cast<double>(answered_bytes_)) +
         " left";
}

}  // namespace headrace
