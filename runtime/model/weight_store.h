// Tensors laid out one after another in device memory, parts of them in pinned host memory in the same layout, and
// brought there from the files: what a model's and a draft's weights share. Owns the memory. First everything is
// placed, then the whole is allocated, then loaded: nothing is read before it is known to fit. Thread: one at a time;
// immutable once loaded, until it is released.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "kernels/weights/op.h"
#include "offload/device/device.h"
#include "offload/host/thread_pool.h"
#include "runtime/base/progress.h"
#include "runtime/model/tensor_source.h"

namespace headrace {

// How matrices are loaded (--weights).
enum class WeightPolicy : uint8_t {
  kKeep,        // quantised matrices of the file stay quantised
  kDequantise,  // quantised matrices of the file are dequantised
  kQ8_0,        // as kKeep, and all other matrices are quantised to this type
  kQ6K,
  kQ5K,
  kQ4K,
  kBf16,  // kDequantise in bf16
};
std::optional<WeightType> quantised_type(WeightPolicy policy);  // none: it quantises nothing
bool dequantises(WeightPolicy policy);
// The type of the computation where the user names none: weights that loading quantises are computed in bf16, as those
// of a quantised file are.
DType computed_in(WeightPolicy policy, DType natural);

// The arithmetic of prefill (--prefill-type; docs/design.md, section 5).
enum class PrefillType : uint8_t {
  kAuto,     // int8 where weights are kept quantised and the computation is not f32
  kCompute,  // the type of the computation ("bf16" on the command line)
  kInt8,
};
struct ComputeTypes {
  DType dtype;
  bool quantised;  // some matrices are kept so
};
bool prefills_in_int8(PrefillType wanted, const ComputeTypes& types);
// "int8", or the name of the computation's type.
inline const char* prefill_type_name(bool int8, DType dtype) { return int8 ? "int8" : dtype_name(dtype); }

// The tensors that have one type in the files and one on the device.
struct WeightTypeUse {
  std::string stored, loaded;  // "Q4_K", "BF16"
  int64_t tensors = 0;
  uint64_t stored_bytes = 0, bytes = 0;  // in the files; on the device

  bool quantised() const;          // in the files
  bool quantised_by_load() const;  // on the device alone
  bool dequantised() const;
};

struct WeightStoreOptions {
  DType dtype = DType::kBF16;  // of everything but the matrices that are kept
  WeightPolicy policy = WeightPolicy::kKeep;
  // Matrices that the files have in more bits than the policy's type are quantised to it, too. What is no smaller then
  // stays as the files have it.
  bool substitutes = false;
};
// `wanted`: of --dtype. Throws Error for types that exclude each other.
WeightStoreOptions weight_options(WeightPolicy policy, std::optional<DType> wanted, DType natural, Backend backend);

// Tensors that hold NaN or infinity. For each of the first few a line: the file, the tensor and the first such value.
struct WeightDamage {
  std::vector<std::string> lines;
  int64_t tensors = 0;
};
// Throws Error(kBadInput) if there is any. `model` names the files.
void refuse_damage(const std::string& model, const WeightDamage& damage);

// The type that a matrix has on the device. Throws Error(kBadInput) if it cannot be quantised.
WeightType loaded_type(const TensorInfo& matrix, const WeightStoreOptions& options);

class WeightStore {
 public:
  WeightStore() = default;
  WeightStore(const WeightStoreOptions& options, Backend backend) : options_(options), backend_(backend) {}

  // Vectors, one after another, in the store's type or another. Returns their offset.
  uint64_t place(std::initializer_list<const TensorInfo*> parts) { return place(parts, dtype()); }
  uint64_t place(std::initializer_list<const TensorInfo*> parts, DType type);
  // One matrix made of several tensors, rows after rows; its parts' data, which are null, will be at `offsets`. Where a
  // matrix would have more parts than a Weight can, none of its tensors is kept quantised.
  struct Rows {
    Rows(const TensorInfo* rows_of, bool never_quantised = false)  // NOLINT(google-explicit-constructor)
        : tensor(rows_of), plain(never_quantised) {}
    const TensorInfo* tensor;
    bool plain;
  };
  struct Matrix {
    Weight weight;
    std::array<uint64_t, 3> offsets{};
  };
  Matrix place_matrix(std::initializer_list<Rows> parts) { return place_matrix(parts, options_); }
  // With other options than the store's.
  Matrix place_matrix(std::initializer_list<Rows> parts, const WeightStoreOptions& options);
  uint64_t next() const;  // the offset of the next matrix
  // Bytes that are copied as they are.
  uint64_t place_raw(std::string bytes);
  // What is placed since the last end, whole pages of it, is a part, which may be in host memory. Returns its number.
  // `movable`: it may leave the device later, too. What is placed after the last end is a part, too.
  size_t end_part(bool movable = false);
  size_t part_count() const { return parts_.size(); }
  uint64_t part_bytes(size_t part) const { return parts_[part].bytes(); }
  uint64_t part_begin(size_t part) const { return parts_[part].begin; }  // an offset
  const std::byte* part_data(size_t part) const { return parts_[part].data; }
  // `in_host`: for each part, whether it is in pinned host memory; those that are missing are on the device. Throws
  // Error(kDoesNotFit), and then has no memory.
  void allocate(Device& device, const char* what, const std::vector<bool>& in_host = {});
  void release();  // frees the memory; what is placed stays. REQUIRES: nothing reads it
  const std::byte* at(uint64_t offset) const { return place_of(offset); }
  // Moves a movable part to pinned host memory, where a GPU's kernels read it, too. REQUIRES: loaded, or nothing reads
  // the store; the part is on the device, which is idle.
  void move_to_host(size_t part, Device& device, const char* what);
  bool in_host(size_t part) const { return parts_[part].host.bytes() > 0; }

  // Reads and converts; where the device's memory is not the host's, uploads through two pinned staging buffers, so
  // that conversion and copies overlap, and has matrices that are kept repacked. `source` is the one whose tensors were
  // placed. False if `interrupt` was set on the way: then nothing is loaded. `progress` and
  // `interrupt` may be null; `what` names the work for both.
  bool load(const TensorSource& source, Device& device, const char* what, Progress* progress,
            const std::atomic<bool>* interrupt);
  bool loaded() const { return loaded_; }
  const WeightDamage& damage() const { return damage_; }  // what load() found: the caller decides if that is an error
  uint64_t staging_bytes() const;  // pinned memory that load() takes while it runs; 0 once it has

  const WeightStoreOptions& options() const { return options_; }
  DType dtype() const { return options_.dtype; }
  uint64_t bytes() const;                    // of the device, so far
  std::vector<WeightTypeUse> types() const;  // of what is placed, the largest first
  bool keeps_blocks() const { return kept_bytes_ > 0; }
  // The type that matrices are quantised to as they are loaded. None: none is.
  std::optional<WeightType> quantises_to() const;

 private:
  struct Placement {  // a tensor of the source, or bytes
    const TensorInfo* tensor;
    std::string raw;
    WeightType type;               // as it will be on the device
    uint64_t offset;               // of it, or of the part that it is kept in
    int64_t first_row, part_rows;  // where it is kept
    bool kept() const { return tensor != nullptr && !is_plain(type); }
    bool quantised_by_load() const { return kept() && tensor->block_type() != type; }
    uint64_t row_bytes() const { return tensor == nullptr ? raw.size() : weight_bytes(type, 1, tensor->cols()); }
    uint64_t bytes() const;       // as they are read
    uint64_t step_bytes() const;  // the least that a staging buffer must hold
  };
  class Loading;
  struct Part {
    uint64_t begin, end;  // of the offsets
    bool movable = false;
    std::byte* data = nullptr;
    DeviceBuffer device{};  // of a movable part; others share memory_
    PinnedBuffer host{};
    uint64_t bytes() const { return end - begin; }
  };

  bool continues(const WeightPart& part, WeightType type) const;
  std::vector<WeightType> types_of(std::initializer_list<Rows> parts, const WeightStoreOptions& options) const;
  void append(const TensorInfo* tensor, WeightType type, Matrix* matrix);
  // Rows of a tensor as the device has them. Returns a line about the first that is NaN or infinite, or an empty one.
  std::string read_rows(const TensorSource& source, const Placement& p, int64_t row, int64_t end, std::byte* dst,
                        ThreadPool& pool) const;
  const Part& part_of(uint64_t offset) const;
  std::byte* place_of(uint64_t offset) const {
    const Part& part = part_of(offset);
    return part.data + (offset - part.begin);
  }
  void note_damage(std::string line);
  uint64_t least_slot_bytes() const;
  uint64_t slot_bytes() const;

  WeightStoreOptions options_;
  Backend backend_ = Backend::kCpu;
  std::vector<Part> parts_;
  DeviceBuffer memory_;  // of the parts on the device, one after another
  uint64_t bytes_ = 0, kept_bytes_ = 0;
  bool loaded_ = false;
  WeightDamage damage_;
  std::vector<Placement> placements_;
};

}  // namespace headrace
