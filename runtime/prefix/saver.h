// Writes prefill's rows to disk, on separate threads, in parallel to prefill and the following steps: a layer's rows
// are written from where they stay in the KV cache, and blocks become complete with the last layer. Rows that are not
// finite, and all rows after them, are left out. A failure ends the saving and nothing else, and removes incomplete
// blocks. Owns the threads, and temporary files until they are complete; reads the cache's memory, which must outlive
// it. Thread: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "offload/device/device.h"
#include "offload/host/thread_annotations.h"
#include "runtime/prefix/store.h"

namespace headrace {

class PrefixSaver {
 public:
  // The location of one part of a block.
  struct Source {
    size_t block = 0, part = 0;  // index among the given blocks
    const std::byte* data = nullptr;
    bool on_device = false;
    // For a block that ends inside its segment: its rows are the `bytes` bytes at each multiple of `stride` in [begin,
    // end), and the rest is zero. None: the whole segment.
    struct Runs {
      uint64_t begin, end, stride, bytes;
    };
    std::vector<Runs> runs{};
    // The types of the part's elements, as consecutive runs of bytes; the bytes after them are not checked. Low-bit
    // values are always finite: their parameters are not, if the row was not.
    struct Elements {
      DType type = DType::kF32;
      uint64_t bytes = 0;
    };
    std::vector<Elements> elements{};
  };
  // Pinned memory for parts of at most this size.
  static uint64_t pinned_bytes(Backend backend, uint64_t largest_part);
  // `blocks` in the order in which they become complete, with room for their checksums.
  PrefixSaver(Device& device, const PrefixStore& store, std::vector<PrefixBlock> blocks);
  ~PrefixSaver();  // removes incomplete blocks

  // The sources may be read once `ready` is done.
  void save(std::shared_ptr<Event> ready, const std::vector<Source>& sources);
  // The same with priority, and returns once they have been read: their memory may then be reused.
  void save_now(std::shared_ptr<Event> ready, const std::vector<Source>& sources);
  // Call after all parts were given. `written`: bytes written so far, for progress; blocks for at most this time.
  bool wait_some(int milliseconds, uint64_t* written);
  uint64_t bytes() const { return bytes_; }
  // After the end: the blocks on disk; the first row of the first block with a NaN or an infinity, which is not saved,
  // nor is any block after it (none: all are finite); and the error (empty: none).
  std::vector<PrefixBlock> saved();
  std::optional<int64_t> not_finite_from();
  std::string failure();

 private:
  struct Job {
    std::shared_ptr<Event> ready;
    Source source;
    bool urgent = false;
  };
  struct Worker {
    PinnedBuffer slot;
    std::unique_ptr<Stream> stream;
  };
  void serve(Worker& worker);
  void run(Worker& worker, const Job& job);
  std::span<const std::byte> gather(Worker& worker, const Source& source, uint64_t bytes);
  void open_files();
  void make_whole();
  void fail(std::exception_ptr error);
  bool ended() const REQUIRES(mutex_) { return stop_ || error_ != nullptr || whole_; }

  const PrefixStore& store_;
  std::vector<PrefixBlock> blocks_;
  uint64_t bytes_ = 0;
  size_t parts_ = 0;
  std::vector<std::unique_ptr<PrefixBlockWriter>> writers_;
  Mutex mutex_;
  CondVar came_, went_;
  std::deque<Job> jobs_ GUARDED_BY(mutex_);
  uint64_t written_ GUARDED_BY(mutex_) = 0;
  size_t parts_written_ GUARDED_BY(mutex_) = 0, running_ GUARDED_BY(mutex_) = 0, urgent_ GUARDED_BY(mutex_) = 0;
  std::vector<PrefixBlock> saved_ GUARDED_BY(mutex_);
  std::optional<int64_t> not_finite_from_ GUARDED_BY(mutex_);
  std::exception_ptr error_ GUARDED_BY(mutex_);  // the first
  bool opened_ GUARDED_BY(mutex_) = false, opening_ GUARDED_BY(mutex_) = false;
  bool stop_ GUARDED_BY(mutex_) = false, whole_ GUARDED_BY(mutex_) = false;
  std::vector<Worker> workers_;
  std::vector<std::thread> threads_;
};

}  // namespace headrace
