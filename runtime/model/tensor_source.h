// Named tensors in one or more files, read row by row in any element type. The weights of targets and drafts are loaded
// from it. Thread: const methods from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/base.h"
#include "kernels/weights/type.h"
#include "runtime/base/input_file.h"

namespace headrace {

struct TensorInfo {
  std::string name;            // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // [out, in] or [n]
  std::string stored_type;     // "BF16", "Q4_1", …
  uint64_t stored_bytes = 0;
  int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
  int64_t cols() const { return shape.empty() ? 0 : shape.back(); }
  std::optional<WeightType> block_type() const;  // of a quantised matrix that can be kept so; none: of others
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(const std::string& name) const;  // null if absent
  const TensorInfo& require(const std::string& name,
                            const std::vector<int64_t>& shape) const;  // Error if absent or other shape
  const std::string& path() const { return path_; }

  // Reads rows [row_begin, row_end) of a tensor (a 1-D tensor is one row), converts them to `type`, and writes them to
  // dst [row_end - row_begin, cols].
  virtual void read_rows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, DType type, void* dst) const = 0;
  // The same rows as stored, in blocks. REQUIRES: tensor.block_type().
  virtual void read_blocks(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, void* dst) const;
  // Where a tensor's stored bytes are, or bytes that identify its content if no file holds it. Fingerprints hash this
  // range.
  virtual ByteRange stored_range(const TensorInfo& tensor) const = 0;
  // The files of the tensors, stamped when they were opened; empty: no file holds the tensors.
  virtual std::vector<FileStamp> files() const { return {}; }

 protected:
  void set_tensors(std::vector<TensorInfo> tensors);  // Error if two have one name
  size_t index_of(const TensorInfo& tensor) const;    // CHECKs that it is one of tensors()
  static void check_rows(const TensorInfo& tensor, int64_t begin, int64_t end) {
    CHECK(0 <= begin && begin <= end && end <= tensor.rows(), tensor.name, " rows ", begin, " to ", end, " of ",
          tensor.rows());
  }

  std::string path_;

 private:
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

std::string shape_text(const std::vector<int64_t>& shape);  // "[576, 1728]"

}  // namespace headrace
