// The CUDA bodies of offload/measure/scatter.h. REQUIRES: a CUDA stream. Threads as stream.h.
#pragma once

#include "offload/measure/scatter.h"

namespace headrace::cuda {

void copy_rows(const StridedCopy& copy, Stream& stream);
void gather_pages(const PageGather& gather, Stream& stream);

}  // namespace headrace::cuda
