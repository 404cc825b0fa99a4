// The server-sent events of one answer, made of what its feed brings. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/requests/answer_stream.h"
#include "runtime/server/job.h"

namespace headrace {

class EventStream {
 public:
  // `first`: news that the caller has taken from the feed.
  EventStream(std::shared_ptr<Job> job, News first, int64_t created);

  // The events since the last call.
  std::string take();
  bool ended() const { return ended_; }

 private:
  const std::shared_ptr<Job> job_;
  const std::unique_ptr<AnswerStream> answer_;
  News news_;
  bool begun_ = false, ended_ = false;
};

}  // namespace headrace
