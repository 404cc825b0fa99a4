#include "offload/host/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace headrace {
namespace {

class PoolOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, PoolOf, ::testing::Values(1, 2, 3, 4));

TEST_P(PoolOf, EveryIndexExactlyOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (int64_t count : {0, 1, 2, 3, 7, 64, 1000, 100003}) {
    std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
    std::atomic<bool> bad_worker{false};
    pool.parallel_for(count, [&](int64_t index, int worker) {
      calls[static_cast<size_t>(index)].fetch_add(1, std::memory_order_relaxed);
      if (worker < 0 || worker >= GetParam()) bad_worker = true;
    });
    EXPECT_FALSE(bad_worker);
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(calls[static_cast<size_t>(i)], 1) << i << " of " << count;
  }
}

// What a body wrote without atomics is seen by the caller, and what the caller wrote before by the bodies; a worker
// that took part in an earlier loop must not touch this one's data.
TEST_P(PoolOf, TenThousandTinyLoops) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(5, 0);
  for (int64_t loop = 0; loop < 10000; ++loop) {
    const size_t count = static_cast<size_t>(loop % 6);
    pool.parallel_for(static_cast<int64_t>(count),
                      [&](int64_t index, int) { values[static_cast<size_t>(index)] += loop; });
    for (size_t i = 0; i < count; ++i) values[i] -= loop;
  }
  EXPECT_EQ(values, std::vector<int64_t>(5, 0));
}

// A worker's number is its own: scratch memory by worker needs no lock.
TEST_P(PoolOf, WorkerNumbersAreNotShared) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> calls(static_cast<size_t>(GetParam()) * 64, 0);  // plain: TSan sees two of one number
  for (int loop = 0; loop < 100; ++loop) {
    pool.parallel_for(200, [&](int64_t, int worker) { ++calls[static_cast<size_t>(worker) * 64]; });
  }
  int64_t all = 0;
  for (int64_t c : calls) all += c;
  EXPECT_EQ(all, 20000);
}

TEST_P(PoolOf, ThreadsRunAtTheSameTime) {
  ThreadPool pool(GetParam());
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  bool met = true;
  pool.parallel_for(GetParam(), [&](int64_t, int) {
    std::unique_lock lock(mutex);
    ++inside;
    changed.notify_all();
    if (!changed.wait_for(lock, std::chrono::seconds(30), [&] { return inside == GetParam(); })) met = false;
  });
  EXPECT_TRUE(met);
}

TEST_P(PoolOf, SleepsAndWakes) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far beyond the spin
    std::atomic<int> calls{0};
    pool.parallel_for(50, [&](int64_t, int) { ++calls; });
    ASSERT_EQ(calls, 50);
  }
}

TEST(ThreadPool, TheCallerIsWorkerZero) {
  ThreadPool pool(3);
  std::mutex mutex;
  std::set<std::thread::id> zeros;
  pool.parallel_for(500, [&](int64_t, int worker) {
    if (worker != 0) return;
    std::lock_guard lock(mutex);
    zeros.insert(std::this_thread::get_id());
  });
  for (std::thread::id id : zeros) EXPECT_EQ(id, std::this_thread::get_id());
}

TEST(ThreadPool, HandsOutInAscendingOrder) {
  ThreadPool pool(4);
  std::vector<std::vector<int64_t>> seen(4);
  pool.parallel_for(10000, [&](int64_t index, int worker) { seen[static_cast<size_t>(worker)].push_back(index); });
  for (const auto& indices : seen) EXPECT_TRUE(std::is_sorted(indices.begin(), indices.end()));
}

TEST(ThreadPool, OneLongIndexDoesNotHoldUpTheRest) {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  std::atomic<bool> all_others_done{true};
  pool.parallel_for(20, [&](int64_t index, int) {
    if (index == 0) {
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (done < 19 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      all_others_done = done == 19;
    } else {
      ++done;
    }
  });
  EXPECT_TRUE(all_others_done);
}

TEST(ThreadPool, ComesAndGoes) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(4);
    if (i % 2 == 0) pool.parallel_for(3, [](int64_t, int) {});
  }
}

TEST(ThreadPoolDeathTest, RefusesALoopInALoop) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.parallel_for(2, [&](int64_t, int) { pool.parallel_for(2, [](int64_t, int) {}); });
      },
      "while another loop runs");
  EXPECT_DEATH(ThreadPool(0), "threads=0");
}

// The first exception of a body comes out, no further index is begun once it is known, and the pool can be used again.
TEST_P(PoolOf, ABodysExceptionComesOut) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 100; ++round) {
    std::atomic<int64_t> calls = 0;
    try {
      pool.parallel_for(100000, [&](int64_t index, int) {
        ++calls;
        if (index % 1000 == 7) throw std::runtime_error("no more");
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "no more");
    }
    EXPECT_LT(calls.load(), 100000);
    std::atomic<int64_t> sum = 0;
    pool.parallel_for(100, [&](int64_t index, int) { sum += index; });
    EXPECT_EQ(sum.load(), 4950);
  }
}

}  // namespace
}  // namespace headrace
