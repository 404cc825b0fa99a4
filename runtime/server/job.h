// A request on its way: made by a thread of the server, answered by the engine's thread, shared by both until both have
// left it. Thread: as each member says.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/requests/request.h"
#include "runtime/server/feed.h"
#include "runtime/server/request_memory.h"

namespace headrace {

struct Job {
  using Clock = std::chrono::steady_clock;

  Job(std::string new_id, Request what, std::vector<int32_t> ids)
      : id(std::move(new_id)), request(std::move(what)), prompt(std::move(ids)) {}

  // Written before the job is queued, then only read.
  const std::string id;  // 24 hexadecimal digits
  const Request request;
  const std::vector<int32_t> prompt;
  const Clock::time_point arrived = Clock::now();
  RequestMemory::Share memory;

  std::atomic<bool> cancelled{false};  // any thread: the engine ends the run at its next step
  Feed feed;                           // both
};

}  // namespace headrace
