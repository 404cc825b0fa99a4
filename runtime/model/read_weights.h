// Rows of a tensor, read on several threads in the form that the device has them in. Each function returns a line about
// the first value that is NaN or infinite, or an empty one. Thread: any, but a pool is one caller's at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/weights/type.h"
#include "offload/host/thread_pool.h"
#include "runtime/model/tensor_source.h"

namespace headrace {

// Rows [row_begin, row_end), converted to `dtype`.
std::string convert_rows(const TensorSource& source, const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                         DType dtype, std::byte* dst, ThreadPool& pool);
// The same rows as they are stored, in blocks. Reports weights that are not finite once they are rounded to `dtype`.
std::string copy_blocks(const TensorSource& source, const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                        DType dtype, std::byte* dst, ThreadPool& pool);
// The same rows, quantised to `type`. Reports a weight of the file; or where the file's weights are finite, a block
// whose scale exceeds f16, or a weight that `dtype` cannot hold.
std::string quantise_rows(const TensorSource& source, const TensorInfo& tensor, WeightType type, int64_t row_begin,
                          int64_t row_end, DType dtype, std::byte* dst, ThreadPool& pool);

}  // namespace headrace
