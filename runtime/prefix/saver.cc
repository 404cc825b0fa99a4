#include "runtime/prefix/saver.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "cache/base.h"
#include "offload/host/start_thread.h"
#include "runtime/model/convert.h"

namespace headrace {
namespace {

// Concurrent writes. On the CPU prefill should share its cores with one thread only.
constexpr int kGpuWriters = 4, kCpuWriters = 1;

bool all_finite(std::span<const std::byte> data, const PrefixSaver::Source& source) {
  bool finite = true;
  for (const PrefixSaver::Source::Elements& run : source.elements) {
    const auto values = static_cast<int64_t>(low_bit(run.type) ? 0 : run.bytes / dtype_bytes(run.type));
    finite = finite && first_not_finite(run.type, data.data(), values) == values;
    data = data.subspan(run.bytes);
  }
  return finite;
}

int writers_of(Backend backend) { return backend == Backend::kCpu ? kCpuWriters : kGpuWriters; }

}  // namespace

uint64_t PrefixSaver::pinned_bytes(Backend backend, uint64_t largest_part) {
  return static_cast<uint64_t>(writers_of(backend)) * whole_pages(largest_part);
}

PrefixSaver::PrefixSaver(Device& device, const PrefixStore& store, std::vector<PrefixBlock> blocks)
    : store_(store), blocks_(std::move(blocks)) {
  uint64_t largest = 0;
  for (const PrefixBlock& block : blocks_) {
    bytes_ += block.data_bytes();
    parts_ += block.checksums.size();
    largest = std::max(largest, block.part_bytes);
  }
  workers_.resize(static_cast<size_t>(writers_of(device.backend())));
  for (Worker& worker : workers_) {
    worker.slot = device.allocate_pinned(largest, "rows on their way to the prefix cache");
    worker.stream = device.make_stream("prefix out", StreamRole::kCopy);
  }
  threads_ = start_threads(workers_.size(), "a thread that writes the prefix cache",
                           [this](size_t number) { serve(workers_[number]); });
}

PrefixSaver::~PrefixSaver() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  came_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PrefixSaver::save(std::shared_ptr<Event> ready, const std::vector<Source>& sources) {
  {
    const MutexLock lock(mutex_);
    for (const Source& source : sources) jobs_.push_back({ready, source});
  }
  came_.notify_all();
}

void PrefixSaver::save_now(std::shared_ptr<Event> ready, const std::vector<Source>& sources) {
  const MutexLock lock(mutex_);
  for (const Source& source : sources) jobs_.push_front({ready, source, true});
  urgent_ += sources.size();
  came_.notify_all();
  while (urgent_ > 0 && !(ended() && running_ == 0)) went_.wait(mutex_);
}

bool PrefixSaver::wait_some(int milliseconds, uint64_t* written) {
  const MutexLock lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (!ended() && went_.wait_until(mutex_, deadline)) {
  }
  *written = written_;
  return ended();
}

std::vector<PrefixBlock> PrefixSaver::saved() {
  const MutexLock lock(mutex_);
  return saved_;
}

std::optional<int64_t> PrefixSaver::not_finite_from() {
  const MutexLock lock(mutex_);
  return not_finite_from_;
}

std::string PrefixSaver::failure() {
  std::exception_ptr error;
  {
    const MutexLock lock(mutex_);
    error = error_;
  }
  return error == nullptr ? "" : error_line(error);
}

// ---- the threads ----------------------------------------------------------------------------------------------------

void PrefixSaver::serve(Worker& worker) {
  const MutexLock lock(mutex_);
  if (!std::exchange(opening_, true)) {
    {
      const MutexUnlock unlock(mutex_);
      open_files();
    }
    opened_ = true;
    came_.notify_all();
  }
  for (;;) {
    while (!ended() && !(opened_ && !jobs_.empty())) came_.wait(mutex_);
    if (ended()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    ++running_;
    {
      const MutexUnlock unlock(mutex_);
      run(worker, job);
    }
    --running_;
    if (job.urgent) --urgent_;
    went_.notify_all();
    if (parts_written_ < parts_ || running_ > 0 || ended()) continue;
    {
      const MutexUnlock unlock(mutex_);
      make_whole();
    }
    whole_ = true;
    came_.notify_all();
    went_.notify_all();
  }
}

void PrefixSaver::open_files() {
  try {
    for (const PrefixBlock& block : blocks_) {
      writers_.push_back(std::make_unique<PrefixBlockWriter>(store_, block));
      if (const MutexLock lock(mutex_); stop_) return;
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

std::span<const std::byte> PrefixSaver::gather(Worker& worker, const Source& source, uint64_t bytes) {
  std::byte* const to = worker.slot.data();
  const auto copy = [&](uint64_t at, uint64_t count) {
    if (!source.on_device) {
      std::memcpy(to + at, source.data + at, count);
    } else {
      worker.stream->copy(to + at, source.data + at, count, Link::kDeviceToHost, "prefix");
    }
  };
  if (source.runs.empty()) copy(0, bytes);
  if (!source.runs.empty()) std::memset(to, 0, bytes);
  for (const Source::Runs& runs : source.runs) {
    for (uint64_t at = runs.begin; at < runs.end; at += runs.stride) copy(at, runs.bytes);
  }
  worker.stream->synchronize();
  return {to, bytes};
}

void PrefixSaver::run(Worker& worker, const Job& job) {
  const Source& source = job.source;
  PrefixBlockWriter& writer = *writers_[source.block];
  const uint64_t bytes = writer.block().part_bytes;
  bool finite = true;
  try {
    job.ready->synchronize();
    std::span<const std::byte> data(source.data, bytes);
    if (!source.runs.empty() || source.on_device) data = gather(worker, source, bytes);
    finite = all_finite(data, source);
    if (finite) writer.write(source.part, data);
  } catch (...) {
    return fail(std::current_exception());
  }
  const MutexLock lock(mutex_);
  const int64_t first_row = writer.block().first_row;
  if (!finite) not_finite_from_ = std::min(not_finite_from_.value_or(first_row), first_row);
  written_ += bytes;
  ++parts_written_;
}

// In order, so that complete blocks form a prefix.
void PrefixSaver::make_whole() {
  try {
    const std::optional<int64_t> end = not_finite_from();
    for (const std::unique_ptr<PrefixBlockWriter>& writer : writers_) {
      if (end && writer->block().first_row >= *end) continue;
      writer->commit();
      const MutexLock lock(mutex_);
      saved_.push_back(writer->block());
    }
    sync_folder(store_.folder());
  } catch (...) {
    fail(std::current_exception());
  }
}

// The reader formats the message: that may fail here, too.
void PrefixSaver::fail(std::exception_ptr error) {
  {
    const MutexLock lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
  }
  came_.notify_all();
  went_.notify_all();
}

}  // namespace headrace
