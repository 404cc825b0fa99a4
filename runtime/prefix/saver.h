// Brings what prefill has made onto the disk, on threads of its own, beside prefill and the steps that follow: a
// layer's rows are written from where they stay in the KV cache, and the blocks become whole when the last layer is
// there. Rows that are not finite are left out, with all behind them. What fails ends the saving and nothing else; then
// nothing of what was not whole remains. Owns the threads, and
// temporary files until they are whole; reads the cache's memory, which must outlive it. Thread: one at a time.
#pragma once

#include <array>
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
  // Where one part of a block lies.
  struct Source {
    size_t block = 0, part = 0;  // as the blocks were given
    const std::byte* data = nullptr;
    bool on_device = false;
    // Of a block that ends inside its segment: from each multiple of `stride` in [begin, end) on `bytes` are its rows,
    // and the rest is zero. None: all of it is.
    struct Runs {
      uint64_t begin, end, stride, bytes;
    };
    std::vector<Runs> runs{};
    // The types of the part's elements, one run of bytes after the other; what follows is not looked at.
    struct Elements {
      DType type = DType::kF32;
      uint64_t bytes = 0;
    };
    std::array<Elements, 2> elements{};
  };
  // Pinned memory that it takes for parts of so many bytes at most.
  static uint64_t pinned_bytes(Backend backend, uint64_t largest_part);
  // `blocks` in the order in which they become whole, with room for their checksums.
  PrefixSaver(Device& device, const PrefixStore& store, std::vector<PrefixBlock> blocks);
  ~PrefixSaver();  // what is not whole goes

  // They may be read once `ready` is done.
  void save(std::shared_ptr<Event> ready, const std::vector<Source>& sources);
  // The same before all else, and returns when they have been read: what holds them may go.
  void save_now(std::shared_ptr<Event> ready, const std::vector<Source>& sources);
  // All parts have been given. Bytes that have been written so far of all, for a progress; blocks for at most so long.
  bool wait_some(int milliseconds, uint64_t* written);
  uint64_t bytes() const { return bytes_; }
  // After the end: the blocks that are on the disk; the first row of the first block with a NaN or an infinity, which
  // is not saved, nor is any behind it (none: there is none); and what went wrong (empty: nothing).
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
