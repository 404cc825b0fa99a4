// BackgroundPinnedBuffer: pieces come one after the other and are there when they are asked for, errors come out then,
// and nothing is left behind.
#include "offload/device/background_pinned_buffer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>
#include <thread>

#include "tests/offload/device/backend_test.h"
#include "tests/support/forwarding_device.h"

namespace headrace {
namespace {

class BackgroundPinnedBufferTest : public BackendTest {
 protected:
  // Through the device's memory, at which only pinned memory that is one registration to CUDA arrives in one copy.
  void expect_reaches_device(const std::byte* from, size_t bytes, std::byte last) {
    const DeviceBuffer to = device_->allocate(bytes, "a test");
    copy_->copy(to.data(), from, bytes, Link::kHostToDevice);
    copy_->synchronize();
    EXPECT_EQ(read(to)[bytes - 1], last);
  }
};
BACKEND_TEST(BackgroundPinnedBufferTest);

TEST_P(BackgroundPinnedBufferTest, IsThereWhenAskedFor) {
  constexpr uint64_t kPiece = 16 * kMiB, kBytes = 2 * kPiece + 5000;
  const uint64_t before = device_->host_mem().used_bytes();
  {
    BackgroundPinnedBuffer first(*device_, kBytes, kPiece, "a test");
    EXPECT_TRUE(first.begun());
    BackgroundPinnedBuffer later = std::move(first);
    EXPECT_FALSE(first.begun());
    std::byte* const data = later.at(0);
    EXPECT_EQ(later.at(kPiece - 1), data + kPiece - 1);
    for (const uint64_t end : {kPiece, 2 * kPiece, kBytes}) {
      *later.at(end - 1) = std::byte{7};
      const uint64_t begin = (end - 1) / kPiece * kPiece;
      expect_reaches_device(later.at(begin), end - begin, std::byte{7});
    }
    later.wait();
    EXPECT_GT(later.ms(), 0);
    EXPECT_GE(later.waited_ms(), 0);
    EXPECT_EQ(device_->host_mem().used_bytes(), before + 2 * kPiece + whole_pages(5000));
  }
  EXPECT_EQ(device_->host_mem().used_bytes(), before);
}

TEST_P(BackgroundPinnedBufferTest, NothingIsNothing) {
  BackgroundPinnedBuffer none;
  EXPECT_FALSE(none.begun());
  none.wait();
  EXPECT_EQ(none.ms(), 0);
  BackgroundPinnedBuffer empty(*device_, 0, kMiB, "a test");
  EXPECT_TRUE(empty.begun());
  empty.wait();
  EXPECT_EQ(empty.ms(), 0);
}

TEST_P(BackgroundPinnedBufferTest, AnErrorComesOutOfThePieceThatLacks) {
  BackgroundPinnedBuffer later(*device_, kSmallHost + kMiB, kSmallHost / 2, "a test's arena");
  EXPECT_NE(later.at(kSmallHost / 2), nullptr);
  for (int i = 0; i < 2; ++i) {
    try {
      later.wait();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
      EXPECT_NE(std::string(error.what()).find("a test's arena"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(later.at(kSmallHost), Error);
  EXPECT_NE(later.at(0), nullptr);
}

// As when loading the weights fails or is interrupted, and another run begins at once.
TEST_P(BackgroundPinnedBufferTest, GoneUnasked) {
  const uint64_t before = device_->host_mem().used_bytes();
  for (int i = 0; i < 5; ++i) BackgroundPinnedBuffer(*device_, kSmallHost - kMiB, 16 * kMiB, "a test");
  { BackgroundPinnedBuffer fails(*device_, 2 * kSmallHost, 2 * kSmallHost, "a test"); }
  BackgroundPinnedBuffer replaced(*device_, kSmallHost / 2, kMiB, "a test");
  replaced = BackgroundPinnedBuffer(*device_, kSmallHost / 4, kMiB, "a test");
  replaced.wait();
  EXPECT_EQ(device_->host_mem().used_bytes(), before + kSmallHost / 4);
  replaced = BackgroundPinnedBuffer();
  EXPECT_EQ(device_->host_mem().used_bytes(), before);
}

// A device whose pinned memory comes a piece at a time, when the test lets it.
class SlowDevice : public testing::ForwardingDevice {
 public:
  SlowDevice() : ForwardingDevice(open_device(small_device(DeviceChoice::kCpu))) {}
  PinnedBuffer allocate_pinned(uint64_t bytes, std::string_view what) override {
    ++asked_;
    may_.acquire();
    return real().allocate_pinned(bytes, what);
  }
  void let(int pieces) { may_.release(pieces); }
  int asked() const { return asked_; }

 private:
  std::counting_semaphore<> may_{0};
  std::atomic<int> asked_{0};
};

TEST(BackgroundPinnedBufferPieces, TheFirstServesWhileTheNextIsTaken) {
  SlowDevice device;
  device.let(1);
  BackgroundPinnedBuffer later(device, 3 * kMiB, kMiB, "a test");
  *later.at(kMiB - 1) = std::byte{7};
  const double waited = later.waited_ms();
  for (int i = 0; i < 100; ++i) later.at(0);
  EXPECT_EQ(later.waited_ms(), waited);  // what is there costs no wait
  std::jthread lets([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // a busy machine lets at() begin late
    device.let(2);
  });
  EXPECT_NE(later.at(3 * kMiB - 1), nullptr);
  EXPECT_GE(later.waited_ms(), waited + 10);
  EXPECT_GE(later.ms(), 10);
}

TEST(BackgroundPinnedBufferPieces, WhoGoesWaitsForOnePieceAlone) {
  constexpr int kPieces = 5000;
  SlowDevice device;
  {
    BackgroundPinnedBuffer later(device, kPieces * kPageBytes, kPageBytes, "a test");
    while (device.asked() == 0) std::this_thread::yield();
    const std::jthread lets([&](const std::stop_token& done) {  // all, in a few seconds
      while (!done.stop_requested()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        device.let(1);
      }
    });
    later = BackgroundPinnedBuffer();
  }
  EXPECT_LT(device.asked(), kPieces);
  EXPECT_EQ(device.host_mem().used_bytes(), 0u);
}

}  // namespace
}  // namespace headrace
