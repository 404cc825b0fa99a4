// What comes first over the link: the order of use, whatever the order in which rings have room again.
#include "offload/device/link_queue.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/offload/device/backend_test.h"

namespace headrace {
namespace {

// A ring of `slots` that brings something for each of the layers, in each pass.
class FakeRing final : public LinkQueue::Source {
 public:
  FakeRing(char name, int64_t rank, int slots, std::vector<int64_t> layers, std::string* order)
      : name_(name), rank_(rank), slots_(slots), layers_(std::move(layers)), order_(order) {}
  LinkPlace next() const override {
    const auto layers = static_cast<int64_t>(layers_.size());
    return {.pass = 1 + filled_ / layers, .layer = layers_[static_cast<size_t>(filled_ % layers)], .rank = rank_};
  }
  bool has_room() const override { return filled_ < freed_ + slots_; }
  void fill() override {
    order_->push_back(name_);
    ++filled_;
  }
  void free() { ++freed_; }

 private:
  const char name_;
  const int64_t rank_, slots_;
  const std::vector<int64_t> layers_;
  std::string* const order_;
  int64_t filled_ = 0, freed_ = 0;
};

class LinkQueueOrder : public ::testing::Test {
 protected:
  LinkQueueOrder() : device_(open_device({.choice = DeviceChoice::kCpu, .threads = 1})), link_(*device_) {}
  std::string after_pump() {
    order_.clear();
    link_.pump();
    return order_;
  }
  std::unique_ptr<Device> device_;
  LinkQueue link_;
  std::string order_;
};

TEST_F(LinkQueueOrder, IsThatOfUse) {
  FakeRing weights('w', 0, 2, {0, 1, 2}, &order_), rows('r', 1, 3, {0, 0, 1, 1, 2, 2}, &order_);
  link_.add(weights);
  link_.add(rows);
  EXPECT_EQ(order_, "wwrrr") << "before the pass: whatever has room";
  link_.begin_pass();
  EXPECT_EQ(after_pump(), "");
  // Layer 0 is done. The weights of layer 2 have room, but rows of layer 1 come before them.
  weights.free();
  EXPECT_EQ(after_pump(), "");
  rows.free();
  EXPECT_EQ(after_pump(), "rw") << "then the next rows are of layer 2";
  rows.free();
  rows.free();
  EXPECT_EQ(after_pump(), "rr");
  // What the next pass uses holds nothing back.
  weights.free();
  weights.free();
  EXPECT_EQ(after_pump(), "ww");
  rows.free();
  EXPECT_EQ(after_pump(), "r");
}

TEST_F(LinkQueueOrder, ForgetsASourceThatIsRemoved) {
  FakeRing weights('w', 0, 2, {0, 1, 2}, &order_);
  link_.add(weights);
  link_.remove(weights);
  weights.free();
  EXPECT_EQ(after_pump(), "");
}

}  // namespace
}  // namespace headrace
