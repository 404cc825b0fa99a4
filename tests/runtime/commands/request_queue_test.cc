#include "runtime/commands/request_queue.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace headrace {
namespace {

using Taken = std::vector<size_t>;

// What one engine takes until it finds nothing.
Taken drain(RequestQueue* queue, size_t engine) {
  Taken taken;
  while (const auto request = queue->take(engine)) {
    taken.push_back(*request);
    queue->finish(engine);
  }
  return taken;
}

TEST(RequestQueue, OneEngineTakesThemInOrder) {
  RequestQueue queue({0, 2, 2, 0, 0, 1}, 1);
  EXPECT_EQ(drain(&queue, 0), (Taken{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(queue.done());
}

TEST(RequestQueue, WithoutRequestsItIsDone) {
  RequestQueue queue({}, 2);
  EXPECT_TRUE(queue.done());
  EXPECT_EQ(queue.take(1), std::nullopt);
}

TEST(RequestQueue, RequestsThatBeginAlikeStayWithOneEngine) {
  RequestQueue queue({0, 1, 1, 0, 1, 1}, 2);
  Taken first, second;
  for (int i = 0; i < 3; ++i) {
    first.push_back(*queue.take(0));
    second.push_back(*queue.take(1));
    queue.finish(0);
    queue.finish(1);
  }
  EXPECT_EQ(first, (Taken{0, 1, 2}));
  EXPECT_EQ(second, (Taken{3, 4, 5}));
  EXPECT_TRUE(queue.done());
}

TEST(RequestQueue, AnIdleEngineTakesAPartOfTheLongestRest) {
  RequestQueue queue({0, 1, 1, 1, 1, 1, 1}, 2);
  EXPECT_EQ(queue.take(0), 0u);
  EXPECT_EQ(queue.take(1), 4u);  // 1 to 6 were left: 4 is their middle
  queue.finish(1);
  EXPECT_EQ(queue.take(1), 5u);
  queue.finish(0);
  EXPECT_EQ(drain(&queue, 0), (Taken{1, 2, 3, 6}));  // the last is split off again
  EXPECT_EQ(queue.take(0), std::nullopt);
  EXPECT_FALSE(queue.done());
  queue.finish(1);
  EXPECT_TRUE(queue.done());
}

// One system prompt before two documents with questions each: the border between the documents shares the least.
TEST(RequestQueue, ARestIsSplitWhereTheLeastIsShared) {
  RequestQueue queue({0, 4, 1, 4, 4, 4, 4}, 2);
  EXPECT_EQ(queue.take(0), 0u);
  EXPECT_EQ(drain(&queue, 1), (Taken{2, 3, 4, 5, 6, 1}));
}

TEST(RequestQueue, ALostEnginesRequestsAreForTheOthers) {
  RequestQueue queue({0, 1, 1, 0}, 2);
  EXPECT_EQ(queue.take(0), 0u);
  EXPECT_EQ(drain(&queue, 1), (Taken{3, 2, 1}));
  EXPECT_FALSE(queue.done());
  EXPECT_TRUE(queue.lose(0));
  EXPECT_EQ(queue.engines_left(), 1u);
  EXPECT_FALSE(queue.done());
  EXPECT_EQ(drain(&queue, 1), (Taken{0}));
  EXPECT_TRUE(queue.done());
}

TEST(RequestQueue, ARequestIsPutBackOnce) {
  RequestQueue queue({0, 1, 1}, 3);
  EXPECT_EQ(queue.take(0), 0u);
  EXPECT_TRUE(queue.lose(0));
  EXPECT_EQ(queue.take(1), 0u);
  EXPECT_FALSE(queue.lose(1));
  EXPECT_EQ(queue.engines_left(), 1u);
  EXPECT_EQ(drain(&queue, 2), (Taken{1, 2}));
  EXPECT_TRUE(queue.done());
}

// Whatever the order, the borders and the losses: each request is answered once.
TEST(RequestQueue, NothingIsForgottenAndNothingTakenTwice) {
  uint32_t state = 1;
  const auto random = [&state](uint32_t below) { return (state = state * 1664525 + 1013904223) / 65536 % below; };
  for (int round = 0; round < 300; ++round) {
    std::vector<size_t> shared(random(20));
    for (size_t& each : shared) each = random(3);
    const size_t engines = 1 + random(4);
    RequestQueue queue(shared, engines);
    std::vector<std::optional<size_t>> busy(engines);
    std::vector<bool> lost(engines, false);
    std::multiset<size_t> answered;
    while (!queue.done()) {
      const size_t engine = random(static_cast<uint32_t>(engines));
      if (lost[engine]) continue;
      if (!busy[engine]) {
        busy[engine] = queue.take(engine);
      } else if (random(5) == 0 && queue.engines_left() > 1) {
        lost[engine] = true;
        if (!queue.lose(engine)) answered.insert(*busy[engine]);  // failed, which is an answer too
      } else {
        answered.insert(*busy[engine]);
        queue.finish(engine);
        busy[engine].reset();
      }
    }
    std::multiset<size_t> all;
    for (size_t i = 0; i < shared.size(); ++i) all.insert(i);
    EXPECT_EQ(answered, all) << "round " << round;
  }
}

}  // namespace
}  // namespace headrace
