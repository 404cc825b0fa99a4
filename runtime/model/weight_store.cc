#include "runtime/model/weight_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>

#include "offload/thread_pool.h"

namespace headrace {
namespace {

constexpr uint64_t kAlignment = 256;
constexpr uint64_t kStagingBytes = 16 * kMiB;

// Converts rows on several threads; an exception of one is rethrown here.
void convert_rows(const TensorSource& source, const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType dtype,
                  std::byte* dst, ThreadPool& pool) {
  const int64_t slices = std::min<int64_t>(row_end - row_begin, pool.threads() * 4), rows = row_end - row_begin;
  const uint64_t row_bytes = static_cast<uint64_t>(tensor.cols()) * dtype_bytes(dtype);
  std::exception_ptr error;
  std::mutex mutex;
  pool.parallel_for(slices, [&](int64_t slice, int) {
    const int64_t begin = rows * slice / slices, end = rows * (slice + 1) / slices;
    try {
      source.read_rows(tensor, row_begin + begin, row_begin + end, dtype,
                       dst + static_cast<uint64_t>(begin) * row_bytes);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

// The two staging buffers, filled in turn.
class Staging {
 public:
  explicit Staging(Device& device, uint64_t bytes) : stream_(device.make_stream("weights", StreamRole::kCopy)) {
    for (Slot& slot : slots_) slot = {device.allocate_pinned(bytes, "staging of the weights"), device.make_event()};
  }

  std::byte* next() {  // blocks until the slot's last copy is done
    current_ ^= 1;
    slots_[current_].copied->synchronize();
    return slots_[current_].memory.data();
  }
  void send(std::byte* dst, uint64_t bytes) {
    stream_->copy(dst, slots_[current_].memory.data(), bytes, Link::kHostToDevice);
    stream_->record(*slots_[current_].copied);
  }
  void finish() { stream_->synchronize(); }

 private:
  struct Slot {
    PinnedBuffer memory;
    std::unique_ptr<Event> copied;
  };
  std::array<Slot, 2> slots_;
  size_t current_ = 0;
  std::unique_ptr<Stream> stream_;  // last: it drains before the slots go
};

}  // namespace

uint64_t WeightStore::place(std::initializer_list<const TensorInfo*> parts) {
  const uint64_t start = bytes_ = round_up(bytes_, kAlignment);
  for (const TensorInfo* tensor : parts) {
    placements_.push_back({tensor, "", bytes_});
    bytes_ += static_cast<uint64_t>(tensor->rows() * tensor->cols()) * dtype_bytes(dtype_);
  }
  return start;
}

uint64_t WeightStore::place_raw(std::string bytes) {
  const uint64_t start = bytes_ = round_up(bytes_, kAlignment);
  bytes_ += bytes.size();
  placements_.push_back({nullptr, std::move(bytes), start});
  return start;
}

void WeightStore::allocate(Device& device, const char* what) { memory_ = device.allocate(bytes_, what); }

uint64_t WeightStore::longest_row_bytes() const {
  uint64_t largest = 0;
  for (const Placement& p : placements_)
    largest = std::max(largest, p.tensor ? static_cast<uint64_t>(p.tensor->cols()) * dtype_bytes(dtype_)
                                         : static_cast<uint64_t>(p.raw.size()));
  return largest;
}

// Of a staging buffer, which holds the longest row.
uint64_t WeightStore::slot_bytes() const { return std::max(std::min(kStagingBytes, bytes_), longest_row_bytes()); }

uint64_t WeightStore::staging_bytes() const { return loaded_ ? 0 : 2 * whole_pages(slot_bytes()); }

bool WeightStore::load(const TensorSource& source, Device& device, const char* what, Progress* progress,
                       const std::atomic<bool>* interrupt) {
  // Where there is no room for two such buffers, smaller ones do: nothing is refused for them.
  const uint64_t room = device.host_mem().free_bytes() / 2 / kPageBytes * kPageBytes;
  const uint64_t slot = std::max(std::min(slot_bytes(), room), longest_row_bytes());
  Staging staging(device, slot);
  ThreadPool pool(device.threads());
  if (progress) progress->begin(what, "bytes", static_cast<int64_t>(bytes_));
  for (const auto& [tensor, raw, offset] : placements_) {
    if (tensor == nullptr) {
      std::memcpy(staging.next(), raw.data(), raw.size());
      staging.send(memory_.data() + offset, raw.size());
      continue;
    }
    const uint64_t row_bytes = static_cast<uint64_t>(tensor->cols()) * dtype_bytes(dtype_);
    const int64_t step = static_cast<int64_t>(slot / row_bytes);
    for (int64_t row = 0; row < tensor->rows(); row += step) {
      if (interrupt != nullptr && interrupt->load(std::memory_order_relaxed)) {
        if (progress) progress->end();
        return false;
      }
      const int64_t end = std::min(tensor->rows(), row + step);
      convert_rows(source, *tensor, row, end, dtype_, staging.next(), pool);
      staging.send(memory_.data() + offset + static_cast<uint64_t>(row) * row_bytes,
                   static_cast<uint64_t>(end - row) * row_bytes);
      if (progress) progress->update(static_cast<int64_t>(offset + static_cast<uint64_t>(end) * row_bytes));
    }
  }
  staging.finish();
  if (progress) progress->end();
  return loaded_ = true;
}

}  // namespace headrace
