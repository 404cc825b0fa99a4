// What a pipeline is late by is known from its own times alone: those of the same pipeline without verifying are
// simulated beside it.
#include "offload/spill/lateness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace headrace {
namespace {

constexpr int64_t kWake = 3;  // ns in which nothing is read once reads begin

struct Pipe {
  int slots;
  std::vector<int64_t> disk, verify, work;  // ns that extent n takes
  std::vector<size_t> phases;  // extents of each: the reads begin anew once the last one has been worked on
};

// When the last extent has been worked on: the disk brings one after the other, each to a free slot, the verifier takes
// them in order, and so does who works on them and then frees the slot.
int64_t simulate(const Pipe& pipe, bool verifies, Lateness* lateness, int64_t* waits) {
  const auto slots = static_cast<size_t>(pipe.slots);
  std::vector<int64_t> freed(slots), slot_late(slots);
  int64_t ready = 0;
  size_t n = 0;
  for (const size_t extents : pipe.phases) {
    int64_t disk_free = ready, verifier_free = ready;
    std::fill(freed.begin(), freed.end(), ready + kWake);
    std::fill(slot_late.begin(), slot_late.end(), lateness->starts());
    for (size_t i = 0; i < extents; ++i, ++n) {
      const size_t slot = i % slots;
      const int64_t begun = std::max(disk_free, freed[slot]);
      const int64_t late = lateness->begins(begun - disk_free, slot_late[slot]);
      const int64_t arrived = begun + pipe.disk[n];
      const int64_t verified = verifies ? std::max(arrived, verifier_free) + pipe.verify[n] : arrived;
      disk_free = arrived;
      verifier_free = verified;
      const int64_t taken = std::max(ready, verified);
      lateness->takes(ready, arrived, late, taken);
      *waits += std::max<int64_t>(0, verified - std::max(ready, arrived));
      slot_late[slot] = lateness->taker_ns();
      ready = freed[slot] = taken + pipe.work[n];
    }
  }
  return ready;
}

struct Found {
  int64_t truly = 0, said = 0, waits = 0, plain = 0;
};

Found found(const Pipe& pipe) {
  Lateness lateness, none;
  Found out;
  int64_t no_waits = 0;
  const int64_t with = simulate(pipe, true, &lateness, &out.waits);
  out.plain = simulate(pipe, false, &none, &no_waits);
  EXPECT_EQ(none.taker_ns(), 0);
  EXPECT_EQ(no_waits, 0);
  out.truly = with - out.plain;
  out.said = lateness.taker_ns();
  return out;
}

Pipe steady(int slots, int64_t disk, int64_t verify, int64_t work) {
  return {slots,
          std::vector<int64_t>(100, disk),
          std::vector<int64_t>(100, verify),
          std::vector<int64_t>(100, work),
          {100}};
}

// Each extent is waited for until it is verified, and yet all of them are late by one.
TEST(Lateness, IsNoSumOfWaitsWhereTheDiskIsWaitedFor) {
  const Found of = found(steady(8, 100, 30, 10));
  EXPECT_EQ(of.waits, 100 * 30);
  EXPECT_EQ(of.said, 30);
  EXPECT_EQ(of.truly, 30);
}

TEST(Lateness, OfASlowVerifierIsAllThatItIsSlowerBy) {
  const Found of = found(steady(4, 100, 150, 10));
  EXPECT_EQ(of.truly, 99 * 50 + 150);
  EXPECT_EQ(of.said, of.truly);
}

// One slot: disk, verifier and taker wait for each other.
TEST(Lateness, OfOneSlotIsTheSum) {
  const Found of = found(steady(1, 100, 30, 10));
  EXPECT_EQ(of.truly, 100 * 30);
  EXPECT_EQ(of.said, of.truly);
}

TEST(Lateness, IsThatOfTheFirstWhereWorkIsWaitedFor) {
  const Found of = found(steady(4, 100, 30, 500));
  EXPECT_EQ(of.truly, 30);
  EXPECT_EQ(of.said, 30);
}

// The first slot came free when less was late than at the end of the reads before.
TEST(Lateness, StaysWhenReadsBeginAnew) {
  Pipe pipe = steady(4, 100, 150, 10);
  pipe.phases = {3, 5, 92};
  const Found of = found(pipe);
  EXPECT_EQ(of.truly, (2 + 4 + 91) * 50 + 3 * 150);
  EXPECT_EQ(of.said, of.truly);
}

TEST(Lateness, IsNeverTooSmallAndNeverMoreThanTheWaits) {
  std::mt19937 random(5);
  int exact = 0;
  for (int i = 0; i < 2000; ++i) {
    Pipe pipe{.slots = 1 + static_cast<int>(random() % 8), .disk = {}, .verify = {}, .work = {}, .phases = {}};
    const unsigned disk = 1 + random() % 300, verify = 1 + random() % 300, work = 1 + random() % 300;
    for (unsigned phases = 1 + random() % 6; phases > 0; --phases) pipe.phases.push_back(5 + random() % 35);
    for (size_t n = std::accumulate(pipe.phases.begin(), pipe.phases.end(), size_t{0}); n > 0; --n) {
      pipe.disk.push_back(random() % disk);
      pipe.verify.push_back(random() % verify);
      pipe.work.push_back(random() % work);
    }
    const Found of = found(pipe);
    EXPECT_GE(of.said, of.truly);
    EXPECT_LE(of.said, of.waits);
    exact += of.said == of.truly;
  }
  EXPECT_GT(exact, 1000);
}

}  // namespace
}  // namespace headrace
