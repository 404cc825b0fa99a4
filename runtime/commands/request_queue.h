// Which engine answers which request of a batch. Requests that begin alike are neighbours, and an engine works through
// such a run of neighbours in order, so that what one request saves serves the next. An engine without work takes a
// part of another's. Pure. Thread: one at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

namespace headrace {

class RequestQueue {
 public:
  // shared[i]: how much of its beginning request i shares with request i - 1; 0: nothing. With one engine the requests
  // come in order.
  RequestQueue(std::vector<size_t> shared, size_t engines);

  // The next request, with the engine until finish() or lose(). None: all are done or with other engines.
  // REQUIRES: the engine has no request and is not lost.
  std::optional<size_t> take(size_t engine);
  void finish(size_t engine);  // its request is done
  // The engine takes no more: what it had left is for the others. True: its request, too. False: that request had been
  // put back before and is done.
  bool lose(size_t engine);

  bool done() const;            // all requests are; while this is false, a lost engine may put one back
  size_t engines_left() const;  // not lost

 private:
  struct Range {
    size_t begin = 0, end = 0;
    size_t size() const { return end - begin; }
  };
  struct Engine {
    Range rest;  // what it takes next
    std::optional<size_t> answering;
    bool lost = false;
  };
  Range split_off();  // from the engine with the longest rest, the part behind the border where the least is shared

  std::vector<size_t> shared_;
  std::deque<Range> waiting_;  // with no engine
  std::vector<Engine> engines_;
  std::vector<bool> put_back_;
};

}  // namespace headrace
