#include "runtime/model/weight_store.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "offload/host/thread_annotations.h"
#include "offload/host/thread_pool.h"
#include "runtime/model/convert.h"

namespace headrace {
namespace {

constexpr uint64_t kAlignment = 256;
constexpr uint64_t kStagingBytes = 16 * kMiB;

float value_at(DType type, const std::byte* values, int64_t index) {
  float value = 0;
  convert_elements(type, reinterpret_cast<const char*>(values) + static_cast<uint64_t>(index) * dtype_bytes(type),
                   DType::kF32, &value, 1);
  return value;
}

std::string describe_damage(const TensorSource& source, const TensorInfo& tensor, int64_t index, DType dtype,
                            float value) {
  const std::string& file = source.stored_range(tensor).source->name();
  const char* const kind = std::isnan(value) ? "NaN" : value > 0 ? "infinity" : "-infinity";
  return str(file, ": tensor ", printable(tensor.name), " holds ", kind, " at row ", index / tensor.cols(), ", column ",
             index % tensor.cols(), " (stored as ", tensor.stored_type, ", read as ", dtype_name(dtype),
             dtype == DType::kF16 ? "; --dtype bf16 has a larger range)" : ")");
}

// Reads and converts rows on several threads. Returns a line about the first value that is NaN or infinite, or an empty
// one. It looks at rows that have just been written, which are still in the core's cache.
std::string convert_rows(const TensorSource& source, const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                         DType dtype, std::byte* dst, ThreadPool& pool) {
  const int64_t slices = std::min<int64_t>(row_end - row_begin, pool.threads() * 4), rows = row_end - row_begin;
  const uint64_t row_bytes = static_cast<uint64_t>(tensor.cols()) * dtype_bytes(dtype);
  constexpr int64_t kNone = INT64_MAX;
  std::atomic<int64_t> worst = kNone;  // the first of the rows' values that is not finite
  pool.parallel_for(slices, [&](int64_t slice, int) {
    const int64_t begin = rows * slice / slices, end = rows * (slice + 1) / slices;
    std::byte* const to = dst + static_cast<uint64_t>(begin) * row_bytes;
    source.read_rows(tensor, row_begin + begin, row_begin + end, dtype, to);
    const int64_t count = (end - begin) * tensor.cols(), found = first_not_finite(dtype, to, count);
    if (found == count) return;
    const int64_t index = begin * tensor.cols() + found;
    for (int64_t before = worst.load(); index < before && !worst.compare_exchange_weak(before, index);) {
    }
  });
  const int64_t index = worst.load();
  if (index == kNone) return "";
  return describe_damage(source, tensor, row_begin * tensor.cols() + index, dtype, value_at(dtype, dst, index));
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

void WeightStore::note_damage(std::string line) {
  constexpr size_t kMaxLines = 4;
  ++damaged_tensors_;
  if (damage_.size() < kMaxLines) {
    damage_.push_back(std::move(line));
  } else {
    damage_.back() = str(damaged_tensors_ - static_cast<int64_t>(kMaxLines) + 1, " more tensors hold NaN or infinity");
  }
}

bool WeightStore::load(const TensorSource& source, Device& device, const char* what, Progress* progress,
                       const std::atomic<bool>* interrupt) {
  // Where there is no room for two such buffers, smaller ones do: nothing is refused for them.
  const uint64_t room = device.host_mem().free_bytes() / 2 / kPageBytes * kPageBytes;
  const uint64_t slot = std::max(std::min(slot_bytes(), room), longest_row_bytes());
  Staging staging(device, slot);
  ThreadPool pool(device.threads());
  damage_.clear();
  damaged_tensors_ = 0;
  if (progress) progress->begin(what, "bytes", static_cast<int64_t>(bytes_));
  for (const auto& [tensor, raw, offset] : placements_) {
    if (tensor == nullptr) {
      std::memcpy(staging.next(), raw.data(), raw.size());
      staging.send(memory_.data() + offset, raw.size());
      continue;
    }
    const uint64_t row_bytes = static_cast<uint64_t>(tensor->cols()) * dtype_bytes(dtype_);
    const int64_t step = static_cast<int64_t>(slot / row_bytes);
    bool damaged = false;
    for (int64_t row = 0; row < tensor->rows(); row += step) {
      if (interrupt != nullptr && interrupt->load(std::memory_order_relaxed)) {
        if (progress) progress->end();
        return false;
      }
      const int64_t end = std::min(tensor->rows(), row + step);
      std::string damage = convert_rows(source, *tensor, row, end, dtype_, staging.next(), pool);
      if (!damage.empty() && !std::exchange(damaged, true)) note_damage(std::move(damage));
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
