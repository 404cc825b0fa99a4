// PinnedLater: the memory is there when it is asked for, errors come out then, and nothing is left behind.
#include "offload/pinned_later.h"

#include <gtest/gtest.h>

#include "tests/offload/backend_test.h"

namespace headrace {
namespace {

class PinnedLaterTest : public BackendTest {};
BACKEND_TEST(PinnedLaterTest);

TEST_P(PinnedLaterTest, IsThereWhenAskedFor) {
  constexpr uint64_t kBytes = 40 * kMiB + 4096;
  const uint64_t before = device_->host_mem().used_bytes();
  {
    PinnedLater first(*device_, kBytes, "a test");
    EXPECT_TRUE(first.begun());
    PinnedLater later = std::move(first);
    const PinnedBuffer& buffer = later.get();
    ASSERT_EQ(buffer.bytes(), kBytes);
    EXPECT_EQ(&later.get(), &buffer);
    EXPECT_GT(later.ms(), 0);
    EXPECT_EQ(device_->host_mem().used_bytes(), before + kBytes);
    buffer.data()[kBytes - 1] = std::byte{7};
    const DeviceBuffer to = device_->allocate(1, "a test");
    copy_->copy(to.data(), buffer.data() + kBytes - 1, 1, Link::kHostToDevice);
    copy_->synchronize();
    EXPECT_EQ(read(to)[0], std::byte{7});
  }
  EXPECT_EQ(device_->host_mem().used_bytes(), before);
}

TEST_P(PinnedLaterTest, NothingIsNothing) {
  PinnedLater none;
  EXPECT_FALSE(none.begun());
  EXPECT_FALSE(none.get());
  PinnedLater empty(*device_, 0, "a test");
  EXPECT_TRUE(empty.begun());
  EXPECT_FALSE(empty.get());
}

TEST_P(PinnedLaterTest, AnErrorComesOutOfGet) {
  PinnedLater later(*device_, kSmallHost + kMiB, "a test's arena");
  try {
    later.get();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_NE(std::string(error.what()).find("a test's arena"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(later.get());
}

// As when loading the weights fails or is interrupted, and another run begins at once.
TEST_P(PinnedLaterTest, GoneUnasked) {
  const uint64_t before = device_->host_mem().used_bytes();
  for (int i = 0; i < 5; ++i) PinnedLater(*device_, kSmallHost - kMiB, "a test");
  { PinnedLater fails(*device_, 2 * kSmallHost, "a test"); }
  EXPECT_EQ(device_->host_mem().used_bytes(), before);
}

}  // namespace
}  // namespace headrace
