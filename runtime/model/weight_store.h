// Tensors laid out one after another in one device buffer, and brought there from the files: what a model's and a
// draft's weights share. Owns the buffer. First everything is placed, then the whole is allocated, then loaded: nothing
// is read before it is known to fit. Thread: one at a time; immutable once loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "offload/device/device.h"
#include "runtime/base/progress.h"
#include "runtime/model/tensor_source.h"

namespace headrace {

class WeightStore {
 public:
  WeightStore() = default;
  explicit WeightStore(DType dtype) : dtype_(dtype) {}

  // One matrix made of several tensors, rows after rows, in the store's type. Returns its offset.
  uint64_t place(std::initializer_list<const TensorInfo*> parts);
  // Bytes that are copied as they are.
  uint64_t place_raw(std::string bytes);
  void allocate(Device& device, const char* what);
  const std::byte* at(uint64_t offset) const { return memory_.data() + offset; }

  // Reads, converts and uploads through two pinned staging buffers, so that conversion and copies overlap. `source` is
  // the one whose tensors were placed. False if `interrupt` was set on the way: then nothing is loaded. `progress` and
  // `interrupt` may be null; `what` names the work for both.
  bool load(const TensorSource& source, Device& device, const char* what, Progress* progress,
            const std::atomic<bool>* interrupt);
  bool loaded() const { return loaded_; }
  // A line for each of the first few tensors that hold NaN or infinity: the file, the tensor and the first such value.
  // Not an error: what a text never comes to does not harm it, and logits that are not finite end the run.
  const std::vector<std::string>& damage() const { return damage_; }
  uint64_t staging_bytes() const;  // pinned memory that load() takes while it runs; 0 once it has

  DType dtype() const { return dtype_; }
  uint64_t bytes() const { return bytes_; }  // as placed so far

 private:
  void note_damage(std::string line);
  uint64_t longest_row_bytes() const;
  uint64_t slot_bytes() const;

  struct Placement {  // a tensor of the source, or bytes
    const TensorInfo* tensor;
    std::string raw;
    uint64_t offset;
  };

  DType dtype_ = DType::kBF16;
  DeviceBuffer memory_;
  uint64_t bytes_ = 0;
  bool loaded_ = false;
  std::vector<std::string> damage_;
  int64_t damaged_tensors_ = 0;
  std::vector<Placement> placements_;
};

}  // namespace headrace
