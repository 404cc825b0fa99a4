// Stream::copy_small: every byte and no other, whatever the alignment; what the host has just written; not behind
// others' large copies.
#include <gtest/gtest.h>

#include <numeric>

#include "offload/device/graph.h"
#include "tests/offload/device/backend_test.h"

namespace headrace {
namespace {

class SmallCopy : public BackendTest {
 protected:
  static constexpr uint64_t kBytes = 600 * kKiB;
  const PinnedBuffer host_ = device_->allocate_pinned(kBytes, "a test"), back_ = device_->allocate_pinned(kBytes, "it");
  const DeviceBuffer on_device_ = device_->allocate(kBytes, "a test");

  void SetUp() override {
    for (uint64_t i = 0; i < kBytes; ++i) host_.data()[i] = static_cast<std::byte>(i * 37 % 251 + 1);
  }
  void clear() {
    compute_->synchronize();
    fill(on_device_, std::byte{0});
    std::fill(back_.data(), back_.data() + kBytes, std::byte{0});
  }
};
BACKEND_TEST(SmallCopy);

TEST_P(SmallCopy, CopiesThoseBytesAndNoOthers) {
  for (const uint64_t bytes : {0ul, 1ul, 15ul, 16ul, 17ul, 4095ul, 4096ul, 70001ul, 300ul * kKiB}) {
    for (const auto& [from, to] :
         {std::pair(0ul, 0ul), std::pair(16ul, 256ul), std::pair(1ul, 0ul), std::pair(5ul, 7ul)}) {
      clear();
      compute_->copy_small(on_device_.data() + to, host_.data() + from, bytes, Link::kHostToDevice);
      compute_->copy_small(back_.data() + from, on_device_.data() + to, bytes, Link::kDeviceToHost);
      compute_->synchronize();
      const std::vector<std::byte> got = read(on_device_);
      for (uint64_t i = 0; i < kBytes; ++i) {
        const bool inside = i >= to && i < to + bytes, outside = i < from || i >= from + bytes;
        ASSERT_EQ(got[i], inside ? host_.data()[from + i - to] : std::byte{0}) << i << " of " << bytes;
        ASSERT_EQ(back_.data()[i], outside ? std::byte{0} : host_.data()[i]) << i << " of " << bytes;
      }
    }
  }
}

TEST_P(SmallCopy, SeesWhatTheHostWroteLast) {
  const auto count = [this](Link link) { return device_->bytes_over(link); };
  const uint64_t in = count(Link::kHostToDevice), out = count(Link::kDeviceToHost);
  Replay replay;
  for (int32_t i = 1; i <= 200; ++i) {
    host_.as<int32_t>()[3] = i;
    replay.run(*compute_, {}, [&] {
      compute_->copy_small(on_device_.data(), host_.data(), 64, Link::kHostToDevice);
      compute_->copy_small(back_.data(), on_device_.data(), 16, Link::kDeviceToHost);
    });
    compute_->synchronize();
    ASSERT_EQ(back_.as<int32_t>()[3], i);
  }
  EXPECT_EQ(count(Link::kHostToDevice) - in, 200 * 64u);
  EXPECT_EQ(count(Link::kDeviceToHost) - out, 200 * 16u);
}

TEST_P(SmallCopy, DoesNotWaitBehindLargeOnes) {
  constexpr uint64_t kLarge = 32 * kMiB;
  const PinnedBuffer from = device_->allocate_pinned(kLarge, "a test");
  const DeviceBuffer to = device_->allocate(kLarge, "a test");
  const std::unique_ptr<Event> end = device_->make_event();
  compute_->copy_small(on_device_.data(), host_.data(), 4096, Link::kHostToDevice);  // what is only slow at first
  compute_->synchronize();
  for (int i = 0; i < 16; ++i) copy_->copy(to.data(), from.data(), kLarge, Link::kHostToDevice);
  copy_->record(*end);
  compute_->copy_small(on_device_.data(), host_.data(), 4096, Link::kHostToDevice);
  compute_->synchronize();
  EXPECT_FALSE(end->done());
  copy_->synchronize();
}

}  // namespace
}  // namespace headrace
