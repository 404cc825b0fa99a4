// How a spilled file is cut: requests tile each extent, blocks each request, and both are near to what a disk likes.
#include "offload/spill/extent.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace {
namespace {

const std::vector<uint64_t> kGrains = {4 * kKiB,
                                       64 * kKiB,
                                       384 * kKiB,
                                       576 * kKiB,
                                       768 * kKiB,
                                       kMiB,
                                       1536 * kKiB - 4 * kKiB,
                                       1536 * kKiB,
                                       2 * kMiB,
                                       5 * kMiB / 2 + 4 * kKiB,
                                       7 * kMiB};

// A request of an extent that has room for the longest.
uint64_t longest_request(uint64_t grain) {
  return SpillCut(grain).request_bytes({.offset = 0, .bytes = 1024 * grain}, 0);
}

TEST(SpillCut, RequestsTileAnExtent) {
  for (const uint64_t grain : kGrains) {
    const SpillCut cut(grain);
    for (const uint64_t grains : {1, 2, 3, 16, 300}) {
      const Extent extent{.offset = 7 * grain, .bytes = grains * grain};
      uint64_t done = 0, requests = 0;
      for (; done < extent.bytes; ++requests) {
        const uint64_t bytes = cut.request_bytes(extent, done);
        ASSERT_GT(bytes, 0u);
        ASSERT_LE(bytes, longest_request(grain));
        ASSERT_EQ(bytes % kPageBytes, 0u);
        done += bytes;
      }
      EXPECT_EQ(done, extent.bytes) << grain;
      EXPECT_EQ(requests, cut.requests(extent.bytes)) << grain;
    }
  }
}

// Each request is of whole blocks, and blocks are numbered without a hole.
TEST(SpillCut, BlocksTileRequests) {
  for (const uint64_t grain : kGrains) {
    const SpillCut cut(grain);
    const Extent extent{.offset = 3 * grain, .bytes = 5 * grain};
    uint64_t next = cut.blocks(extent.offset);
    for (uint64_t done = 0; done < extent.bytes;) {
      const uint64_t end = done + cut.request_bytes(extent, done);
      while (done < end) {
        EXPECT_EQ(cut.block(extent.offset + done), next++) << grain;
        done += cut.block_bytes(extent.offset + done);
      }
      EXPECT_EQ(done, end) << grain;
    }
    EXPECT_EQ(next, cut.blocks(8 * grain)) << grain;
  }
}

TEST(SpillCut, RequestsAreAboutAMebibyte) {
  for (const uint64_t grain : kGrains) {
    const uint64_t bytes = longest_request(grain);
    EXPECT_GE(bytes, 2 * kMiB / 3) << grain;
    EXPECT_LE(bytes, 3 * kMiB / 2) << grain;
  }
  EXPECT_EQ(longest_request(2 * kMiB), kMiB);
  EXPECT_EQ(longest_request(64 * kKiB), kMiB);
  EXPECT_EQ(longest_request(384 * kKiB), 1152 * kKiB);
}

}  // namespace
}  // namespace headrace
