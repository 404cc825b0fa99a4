// The time that a batch has left: by bytes, from the time of the documents that were answered. Thread: one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

class TimeLeft {
 public:
  // The documents' bytes. The time begins now.
  explicit TimeLeft(std::vector<uint64_t> bytes);
  void passed(size_t index);           // it took no work: done before, or failed
  std::string answered(size_t index);  // "; 3:20 left"; empty: nothing is left

 private:
  std::vector<uint64_t> bytes_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  uint64_t left_bytes_ = 0, answered_bytes_ = 0;
};

}  // namespace headrace
