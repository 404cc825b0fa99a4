#include "offload/device/budget.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/base.h"

namespace headrace {
namespace {

Error refusal(MemoryBudget& budget, uint64_t bytes, std::string_view what) {
  try {
    (void)budget.reserve(bytes, what);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << bytes << " bytes were not refused";
  return Error(ErrorInfo{});
}

TEST(Budget, CountsWhatIsReserved) {
  MemoryBudget budget("--vram", 100);
  auto a = budget.reserve(60, "a");
  EXPECT_EQ(a.bytes(), 60u);
  EXPECT_EQ(budget.used_bytes(), 60u);
  EXPECT_EQ(budget.free_bytes(), 40u);
  {
    auto b = budget.reserve(40, "b");  // to the last byte
    EXPECT_EQ(budget.free_bytes(), 0u);
  }
  EXPECT_EQ(budget.used_bytes(), 60u);
  EXPECT_EQ(budget.flag(), "--vram");
  EXPECT_EQ(budget.limit_bytes(), 100u);
}

TEST(Budget, SaysWhatWasAskedForWhatAndWhatIsFree) {
  MemoryBudget budget("--vram", 2 * kGiB);
  auto held = budget.reserve(2 * kGiB - 800 * kMiB, "the cache");
  const Error error = refusal(budget, 1288490189, "weights");
  EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
  EXPECT_EQ(error.info().where, "--vram");
  EXPECT_EQ(error.info().what, "needs 1.20 GiB for weights, 800.00 MiB of 2.00 GiB are free");
  EXPECT_NE(error.info().hint.find("raise --vram"), std::string::npos);
  EXPECT_EQ(budget.used_bytes(), 2 * kGiB - 800 * kMiB);  // a refusal takes nothing
  EXPECT_EQ(budget.peak_bytes(), 2 * kGiB - 800 * kMiB);
}

TEST(Budget, DoesNotWrap) {
  MemoryBudget budget("--vram", 100);
  auto held = budget.reserve(60, "a");
  EXPECT_EQ(refusal(budget, UINT64_MAX, "all").code(), ExitCode::kDoesNotFit);
  EXPECT_EQ(refusal(budget, UINT64_MAX - 59, "what wraps to zero").code(), ExitCode::kDoesNotFit);
  EXPECT_EQ(refusal(budget, 41, "one more than is free").code(), ExitCode::kDoesNotFit);
}

TEST(Budget, PeakStaysAndIsReset) {
  MemoryBudget budget("--vram", 100);
  auto a = budget.reserve(30, "a");
  { auto b = budget.reserve(50, "b"); }
  EXPECT_EQ(budget.peak_bytes(), 80u);
  budget.reset_peak();
  EXPECT_EQ(budget.peak_bytes(), 30u);
  { auto b = budget.reserve(10, "b"); }
  EXPECT_EQ(budget.peak_bytes(), 40u);
}

TEST(Budget, ChildComesOutOfItsParent) {
  MemoryBudget parent("--host-mem", 100);
  MemoryBudget child("--vram", 80, &parent);
  auto a = child.reserve(50, "a");
  EXPECT_EQ(parent.used_bytes(), 50u);
  auto b = parent.reserve(30, "b");
  EXPECT_EQ(child.used_bytes(), 50u);
  EXPECT_EQ(child.free_bytes(), 20u);  // the parent's rest, not its own 30
  {
    auto c = child.reserve(20, "c");
    EXPECT_EQ(parent.free_bytes(), 0u);
  }
  EXPECT_EQ(parent.used_bytes(), 80u);
  EXPECT_EQ(parent.peak_bytes(), 100u);
  EXPECT_EQ(child.peak_bytes(), 70u);
}

TEST(Budget, TellsItsOwnBytesFromItsChildrens) {
  MemoryBudget parent("--host-mem", 1000), child("--vram", 800, &parent);
  MemoryBudget::Reservation inside = child.reserve(500, "weights");
  {
    const MemoryBudget::Reservation own = parent.reserve(300, "staging");
    EXPECT_EQ(parent.peak_bytes(), 800u);
  }
  EXPECT_EQ(parent.own_peak_bytes(), 300u);
  EXPECT_EQ(child.own_peak_bytes(), 500u);
  parent.reset_peak();
  EXPECT_EQ(parent.own_peak_bytes(), 0u);
  EXPECT_EQ(parent.peak_bytes(), 500u);
}

TEST(Budget, NamesTheTighterOfTheTwo) {
  MemoryBudget parent("--host-mem", 100);
  MemoryBudget child("--vram", 80, &parent);
  EXPECT_EQ(refusal(child, 90, "w").info().where, "--vram");
  EXPECT_EQ(refusal(child, 110, "w").info().where, "--vram");
  auto b = parent.reserve(60, "b");
  EXPECT_EQ(refusal(child, 50, "w").info().where, "--host-mem");
  EXPECT_EQ(refusal(child, 90, "w").info().where, "--host-mem");
  EXPECT_EQ(refusal(child, 90, "w").info().what, "needs 90 B for w, 40 B of 100 B are free");
  EXPECT_EQ(child.used_bytes(), 0u);  // nothing was left behind in either
  EXPECT_EQ(parent.used_bytes(), 60u);
  EXPECT_EQ(child.peak_bytes(), 0u);
}

TEST(Budget, WithTheParentsLimitNamesTheParent) {
  MemoryBudget parent("--host-mem", 100);
  MemoryBudget child("--vram", 100, &parent);
  EXPECT_EQ(refusal(child, 101, "w").info().where, "--host-mem");
}

TEST(Reservation, MovesAndGivesBackOnce) {
  MemoryBudget budget("--vram", 100);
  auto a = budget.reserve(30, "a");
  MemoryBudget::Reservation b = std::move(a);
  EXPECT_EQ(a.bytes(), 0u);  // NOLINT: the moved-from state is what is tested
  EXPECT_EQ(b.bytes(), 30u);
  EXPECT_EQ(budget.used_bytes(), 30u);
  auto c = budget.reserve(20, "c");
  c = std::move(b);  // the 20 go back
  EXPECT_EQ(budget.used_bytes(), 30u);
  EXPECT_EQ(c.bytes(), 30u);
  auto& same = c;
  c = std::move(same);
  EXPECT_EQ(c.bytes(), 30u);
  EXPECT_EQ(budget.used_bytes(), 30u);
  c = {};
  EXPECT_EQ(budget.used_bytes(), 0u);
  a = budget.reserve(5, "a moved-from one takes a new one");
  EXPECT_EQ(a.bytes(), 5u);
}

TEST(Budget, HoldsAmongThreads) {
  MemoryBudget parent("--host-mem", 1000);
  MemoryBudget left("--vram", 700, &parent), right("--other", 700, &parent);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      MemoryBudget& budget = t % 2 == 0 ? left : right;
      for (int i = 0; i < 2000; ++i) {
        try {
          auto a = budget.reserve(300, "a");
          EXPECT_LE(parent.used_bytes(), 1000u);
          auto b = budget.reserve(static_cast<uint64_t>(i % 200), "b");
        } catch (const Error&) {
          // Some must be refused; none may be let through.
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(parent.peak_bytes(), 1000u);
  EXPECT_GE(parent.peak_bytes(), 300u);
  EXPECT_EQ(parent.used_bytes(), 0u);
  EXPECT_EQ(left.used_bytes(), 0u);
  EXPECT_EQ(right.used_bytes(), 0u);
}

TEST(BudgetDeathTest, MustOutliveItsReservations) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        MemoryBudget::Reservation reservation;
        MemoryBudget budget("--vram", 10);
        reservation = budget.reserve(7, "a");
      },
      "--vram goes away with 7 bytes reserved");
}

}  // namespace
}  // namespace headrace
