// Faults for all files during an object's lifetime. Header only. Operations may come from any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "cache/base.h"
#include "offload/disk/file_faults.h"

namespace headrace::testing {

class ScriptedFaults final : public FileFaults {
 public:
  using Before = std::function<FileFault(FileOp op, const std::string& path, uint64_t offset, uint64_t bytes)>;
  using AfterRead = std::function<void(uint64_t offset, std::span<std::byte> data)>;

  explicit ScriptedFaults(Before before, AfterRead after_read = {})
      : before_(std::move(before)), after_read_(std::move(after_read)) {
    CHECK(set_file_faults(this) == nullptr);
  }
  ~ScriptedFaults() override { set_file_faults(nullptr); }

  FileFault before(FileOp op, const std::string& path, uint64_t offset, uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    return before_ ? before_(op, path, offset, bytes) : FileFault{};
  }
  void after_read(const std::string&, uint64_t offset, std::span<std::byte> data) override {
    const std::lock_guard lock(mutex_);
    if (after_read_) after_read_(offset, data);
  }

 private:
  std::mutex mutex_;
  const Before before_;
  const AfterRead after_read_;
};

// The nth operation of a kind, from 0, and those after it, fail with `error`.
inline ScriptedFaults::Before failing(FileOp kind, int64_t nth, int error) {
  return [=, seen = int64_t{0}](FileOp op, const std::string&, uint64_t, uint64_t) mutable {
    return FileFault{.error = op == kind && seen++ >= nth ? error : 0};
  };
}

}  // namespace headrace::testing
