// The slab of experts against a plain list in the order of use: which experts are where, which are fetched, and that
// each round finds its experts' bytes in the slots that it reads.
#include "kernels/experts/slab.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/kernel_test.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;

constexpr size_t as_index(int64_t index) { return static_cast<size_t>(index); }

struct SlabShape {
  int64_t count, slots, most_used;
  bool shared = false;
};

// What the op promises, said another way: slots in the order of their last use, the oldest first.
class LruList {
 public:
  explicit LruList(int64_t slots) : in_(as_index(slots), -1), order_(as_index(slots)) {
    std::iota(order_.begin(), order_.end(), 0);
  }
  // used: ascending. Returns the experts of each round.
  std::vector<std::vector<int32_t>> use(const std::vector<int32_t>& used) {
    std::vector<std::vector<int32_t>> rounds(1);
    std::vector<int32_t> absent, touched;
    missing.assign(1, {});
    for (const int32_t expert : used) {
      const auto slot = std::find(in_.begin(), in_.end(), expert);
      if (slot == in_.end()) {
        absent.push_back(expert);
        continue;
      }
      rounds[0].push_back(expert);
      touched.push_back(static_cast<int32_t>(slot - in_.begin()));
    }
    hits += rounds[0].size();
    fetched += absent.size();
    std::vector<int32_t> free;
    for (const int32_t slot : order_) {
      if (std::find(touched.begin(), touched.end(), slot) == touched.end()) free.push_back(slot);
    }
    for (const int32_t expert : absent) {
      if (free.empty()) {  // a new round may take any slot
        free.resize(in_.size());
        std::iota(free.begin(), free.end(), 0);
        rounds.emplace_back();
        missing.emplace_back();
      }
      const int32_t slot = free.front();
      free.erase(free.begin());
      in_[as_index(slot)] = expert;
      rounds.back().push_back(expert);
      missing.back().push_back(expert);
      touched.push_back(slot);
    }
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    std::erase_if(order_, [&](int32_t slot) { return std::binary_search(touched.begin(), touched.end(), slot); });
    order_.insert(order_.end(), touched.begin(), touched.end());
    return rounds;
  }
  const std::vector<int32_t>& in() const { return in_; }

  uint64_t hits = 0, fetched = 0;
  std::vector<std::vector<int32_t>> missing;

 private:
  std::vector<int32_t> in_, order_;
};

class ExpertSlabTest : public testing_support::KernelTest {
 protected:
  static constexpr uint64_t kStrides[] = {40 * 1024 + 16, 256, 16};

  void TearDown() override {
    memory_.clear();
    present_ = {};
    KernelTest::TearDown();
  }
  void make(const SlabShape& shape) {
    shape_ = shape;
    slab_ = {};
    slab_.part_count = 3;
    slab_.slots = shape.slots;
    memory_.clear();
    host_.clear();
    std::mt19937 random(3);
    for (int i = 0; i < slab_.part_count; ++i) {
      std::vector<uint32_t> words(as_index(shape.count) * kStrides[i] / 4);
      for (uint32_t& word : words) word = static_cast<uint32_t>(random());
      host_.push_back(words);
      memory_.push_back(upload_raw(words));
      memory_.push_back(output(as_index(shape.slots) * kStrides[i]));
      slab_.parts[i] = {memory_[memory_.size() - 2].data(), memory_.back().data(), kStrides[i]};
    }
    most_rounds_ = slab_rounds(shape.slots, shape.count + 1);
    const auto array = [&](int64_t count, auto value) {
      memory_.push_back(upload_raw(std::vector<decltype(value)>(as_index(count), value)));
      return memory_.back().as<decltype(value)>();
    };
    slab_.expert_in = array(shape.slots, int32_t{-1});
    slab_.used_at = array(shape.slots, uint32_t{0});
    slab_.calls = array(1, uint32_t{0});
    slab_.matrices = array(shape.count + 1, int32_t{-7});
    slab_.rounds = array(most_rounds_ * (shape.slots + 1), int32_t{-7});
    slab_.missing = array(most_rounds_ * (shape.slots + 1), int32_t{-7});
    slab_.counts = array(2, uint64_t{0});
  }
  template <typename T>
  std::vector<T> values(const T* of) {
    const auto array =
        std::find_if(memory_.begin(), memory_.end(), [&](const DeviceArray& each) { return each.as<T>() == of; });
    return download_raw<T>(*array);
  }
  std::vector<int32_t> list(const int32_t* of, int64_t round) {
    const std::vector<int32_t> all = values(of);
    const auto begin = all.begin() + round * (shape_.slots + 1);
    const auto end = std::find(begin, begin + shape_.slots + 1, -1);
    EXPECT_TRUE(std::all_of(end, begin + shape_.slots + 1, [](int32_t entry) { return entry == -1; }));
    return {begin, end};
  }
  // Seats the experts as a pass does that may use `listed` of them.
  int64_t seat(std::vector<int32_t> used) {
    const int64_t most = shape_.most_used + (shape_.shared ? 1 : 0);
    if (shape_.shared) used.push_back(static_cast<int32_t>(shape_.count));
    used.resize(as_index(most), -1);
    present_ = upload_raw(used);
    seat_experts({.slab = slab_,
                  .present = present_.as<int32_t>(),
                  .listed = most,
                  .count = shape_.count,
                  .shared = shape_.shared},
                 stream());
    return slab_rounds(slab_.slots, most);
  }
  void expect_bytes(const std::vector<int32_t>& experts) {
    const std::vector<int32_t> matrices = values(slab_.matrices);
    for (int i = 0; i < slab_.part_count; ++i) {
      const std::vector<uint32_t> there = values(static_cast<const uint32_t*>(slab_.parts[i].device));
      const auto words = static_cast<int64_t>(kStrides[i] / 4);
      for (const int32_t expert : experts) {
        if (expert == shape_.count) continue;
        const int64_t slot = matrices[as_index(expert)];
        ASSERT_TRUE(slot >= 0 && slot < shape_.slots) << slot;
        ASSERT_TRUE(std::equal(there.begin() + slot * words, there.begin() + (slot + 1) * words,
                               host_[as_index(i)].begin() + expert * words))
            << "part " << i << " of expert " << expert;
      }
    }
  }

  SlabShape shape_{};
  ExpertSlab slab_;
  int64_t most_rounds_ = 0;
  std::vector<DeviceArray> memory_;
  std::vector<std::vector<uint32_t>> host_;
  DeviceArray present_;
};
INSTANTIATE_KERNEL_TEST(ExpertSlabTest);

TEST_P(ExpertSlabTest, IsAListInTheOrderOfUse) {
  for (const SlabShape& shape :
       {SlabShape{16, 6, 4}, SlabShape{16, 6, 4, true}, SlabShape{128, 50, 8}, SlabShape{40, 7, 40},
        SlabShape{33, 1, 3, true}, SlabShape{64, 64, 64}, SlabShape{256, 100, 255, true}}) {
    make(shape);
    LruList lru(shape.slots);
    std::mt19937 random(11);
    for (int pass = 0; pass < 25; ++pass) {
      std::vector<int32_t> all(as_index(shape.count));
      std::iota(all.begin(), all.end(), 0);
      // Lower experts more often, so that some are there again.
      std::shuffle(all.begin() + (pass % 3 == 0 ? 0 : std::min<int64_t>(4, shape.most_used / 2)), all.end(), random);
      const int64_t used = pass == 7 ? 0 : 1 + static_cast<int64_t>(random() % as_index(shape.most_used));
      std::vector<int32_t> chosen(all.begin(), all.begin() + used);
      std::sort(chosen.begin(), chosen.end());
      std::vector<std::vector<int32_t>> expected = lru.use(chosen);
      if (shape.shared) expected[0].push_back(static_cast<int32_t>(shape.count));
      const int64_t rounds = seat(chosen);
      ASSERT_GE(rounds, static_cast<int64_t>(expected.size()));
      for (int64_t round = 0; round < rounds; ++round) {
        const bool any = as_index(round) < expected.size();
        ASSERT_EQ(list(slab_.rounds, round), any ? expected[as_index(round)] : std::vector<int32_t>()) << pass;
        ASSERT_EQ(list(slab_.missing, round), any ? lru.missing[as_index(round)] : std::vector<int32_t>()) << pass;
        fetch_experts({.slab = slab_, .round = round, .most = std::min(shape.slots, shape.most_used)}, stream());
        if (any) expect_bytes(expected[as_index(round)]);
      }
      ASSERT_EQ(values(slab_.expert_in), lru.in()) << pass;
    }
    EXPECT_EQ(values(slab_.counts), (std::vector<uint64_t>{lru.hits, lru.fetched}));
    if (shape.shared) {
      EXPECT_EQ(values(slab_.matrices).back(), shape.slots);
    }
  }
}

// As many experts as a slab may have, and their shared one behind the last thread.
TEST_P(ExpertSlabTest, TakesAsManyExpertsAsThereMayBe) {
  make({1024, 1024, 1024, true});
  std::vector<int32_t> all(1024);
  std::iota(all.begin(), all.end(), 0);
  for (const uint64_t fetched : {1024u, 0u}) {
    seat(all);
    EXPECT_EQ(list(slab_.missing, 0).size(), fetched);
    EXPECT_EQ(list(slab_.rounds, 0).size(), 1025u);
    EXPECT_EQ(values(slab_.matrices).back(), 1024);
  }
}

}  // namespace
}  // namespace headrace
