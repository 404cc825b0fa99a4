// Assigns the requests of a batch to engines. Requests with the same beginning are neighbours, and an engine answers
// such neighbours in order, so that each can use the rows of the previous one. An engine without work takes a part of
// another engine's requests. Pure. Thread: one at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

namespace headrace {

class RequestQueue {
 public:
  // shared[i]: the length of the common beginning of requests i and i - 1; 0: none. With one engine the requests come
  // in order.
  RequestQueue(std::vector<size_t> shared, size_t engines);

  // The next request, with the engine until finish() or lose(). None: all are done or with other engines.
  // REQUIRES: the engine has no request and is not lost.
  std::optional<size_t> take(size_t engine);
  void finish(size_t engine);  // its request is done
  // Takes the engine out; the others get its remaining requests. True: also the one that it was answering. False: that
  // one had been put back before and counts as done.
  bool lose(size_t engine);

  bool done() const;            // all requests are; while this is false, a lost engine may put one back
  size_t engines_left() const;  // not lost

 private:
  struct Range {
    size_t begin = 0, end = 0;
    size_t size() const { return end - begin; }
  };
  struct Engine {
    Range rest;  // its next requests
    std::optional<size_t> answering;
    bool lost = false;
  };
  Range split_off();  // takes requests from the engine with the longest rest, from the border on that shares the least

  std::vector<size_t> shared_;
  std::deque<Range> waiting_;  // assigned to no engine
  std::vector<Engine> engines_;
  std::vector<bool> put_back_;
};

}  // namespace headrace
