#include "runtime/commands/request_queue.h"

#include <algorithm>
#include <utility>

#include "cache/base.h"

namespace headrace {

RequestQueue::RequestQueue(std::vector<size_t> shared, size_t engines)
    : shared_(std::move(shared)), engines_(engines), put_back_(shared_.size(), false) {
  CHECK(engines > 0);
  for (size_t i = 0; i < shared_.size(); ++i) {
    if (i == 0 || shared_[i] == 0) waiting_.push_back({i, i});
    ++waiting_.back().end;
  }
}

std::optional<size_t> RequestQueue::take(size_t engine) {
  Engine& taker = engines_.at(engine);
  CHECK(!taker.lost && !taker.answering, "engine=", engine);
  if (taker.rest.size() == 0) {
    if (waiting_.empty()) {
      taker.rest = split_off();
    } else {
      taker.rest = waiting_.front();
      waiting_.pop_front();
    }
  }
  if (taker.rest.size() == 0) return std::nullopt;
  taker.answering = taker.rest.begin++;
  return taker.answering;
}

RequestQueue::Range RequestQueue::split_off() {
  const auto longest = std::max_element(engines_.begin(), engines_.end(),
                                        [](const Engine& a, const Engine& b) { return a.rest.size() < b.rest.size(); });
  Range& rest = longest->rest;
  if (rest.size() == 0) return {};
  // Splits at the middle, unless another border shares less. Even the border at the start counts: the request before it
  // is the engine's current one.
  const auto from_middle = [&rest](size_t border) {
    const size_t middle = rest.begin + rest.size() / 2;
    return border > middle ? border - middle : middle - border;
  };
  size_t best = rest.begin;
  for (size_t border = rest.begin; border < rest.end; ++border) {
    if (std::pair(shared_[border], from_middle(border)) < std::pair(shared_[best], from_middle(best))) best = border;
  }
  return {best, std::exchange(rest.end, best)};
}

void RequestQueue::finish(size_t engine) {
  CHECK(engines_.at(engine).answering.has_value(), "engine=", engine);
  engines_[engine].answering.reset();
}

bool RequestQueue::lose(size_t engine) {
  Engine& lost = engines_.at(engine);
  CHECK(!lost.lost && lost.answering, "engine=", engine);
  const size_t request = *lost.answering;
  const bool again = !put_back_[request];
  put_back_[request] = true;
  const Range left{again ? request : request + 1, lost.rest.end};  // its rest follows its request
  if (left.begin < left.end) waiting_.push_front(left);
  lost = {.rest = {}, .answering = std::nullopt, .lost = true};
  return again;
}

bool RequestQueue::done() const {
  return waiting_.empty() && std::all_of(engines_.begin(), engines_.end(), [](const Engine& engine) {
           return engine.rest.size() == 0 && !engine.answering;
         });
}

size_t RequestQueue::engines_left() const {
  return static_cast<size_t>(
      std::count_if(engines_.begin(), engines_.end(), [](const Engine& engine) { return !engine.lost; }));
}

}  // namespace headrace
