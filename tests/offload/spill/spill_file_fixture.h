// A spilled file of a small device, written whole and read in extents that tile it, not in order. Header only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "offload/spill/spill_file.h"
#include "tests/offload/device/backend_test.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace headrace {

constexpr uint64_t kGrain = 64 * kKiB, kSlot = 4 * kGrain, kBytes = 9 * kSlot;

class SpillFileTest : public BackendTest {
 protected:
  // Spans of one to four grains that tile the file, not in order.
  static std::vector<Extent> extents() {
    std::vector<Extent> all;
    for (uint64_t offset = 0, grains = 1; offset < kBytes; offset += all.back().bytes, grains = grains % 4 + 1) {
      all.push_back({offset, std::min(grains * kGrain, kBytes - offset)});
    }
    for (size_t i = 0; i + 1 < all.size(); i += 3) std::swap(all[i], all[i + 1]);
    return all;
  }
  SpillFileOptions options(int slots, FileQueueBody body = FileQueueBody::kAuto) const {
    return {.folder = folder_.path(),
            .bytes = kBytes,
            .grain_bytes = kGrain,
            .slots = slots,
            .slot_bytes = kSlot,
            .body = body};
  }
  static std::byte value(uint64_t offset) { return static_cast<std::byte>(offset / kGrain * 5 + 3); }

  void write_all(SpillFile& file) {
    const DeviceBuffer from = device_->allocate(kBytes, "a test");
    const PinnedBuffer host = device_->allocate_pinned(kBytes, "a test");
    for (uint64_t at = 0; at < kBytes; at += kGrain) std::memset(host.data() + at, int(value(at)), kGrain);
    compute_->copy(from.data(), host.data(), kBytes, Link::kHostToDevice);
    compute_->synchronize();
    try {
      for (const Extent& extent : extents()) file.write(extent, from.data() + extent.offset, *copy_, "test");
      file.finish_writes();
    } catch (...) {
      copy_->synchronize();
      throw;
    }
  }
  // Takes `count` extents of the cycle; each is whole, and stays so until it has been copied.
  void read_some(SpillFile& file, int count) {
    const std::vector<Extent> cycle = extents();
    const DeviceBuffer to = device_->allocate(kSlot, "a test");
    for (int i = 0; i < count; ++i) {
      const Extent extent = cycle[static_cast<size_t>(i) % cycle.size()];
      const std::byte* const data = file.take();
      ASSERT_NE(data, nullptr);
      copy_->copy(to.data(), data, extent.bytes, Link::kHostToDevice);
      file.release(*copy_);
      const std::vector<std::byte> got = read(to);
      for (uint64_t at = 0; at < extent.bytes; at += kGrain) {
        ASSERT_EQ(got[at], value(extent.offset + at)) << i << " at " << at;
        ASSERT_EQ(got[at + kGrain - 1], value(extent.offset + at)) << i << " at " << at;
      }
    }
  }
  template <typename Call>
  std::string error_of(const Call& call) {
    return testing_support::error_of(ExitCode::kStorage, call);
  }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  TemporaryFolder folder_;
};

}  // namespace headrace
