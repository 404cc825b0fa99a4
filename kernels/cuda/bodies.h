// How an op declares the bodies that its op.cc passes the checked params to: one CPU body, called on a compute stream's
// thread with its pool, the truth that the CUDA body is tested against; and one CUDA body, a launcher, asynchronous on
// the stream, which REQUIRES a CUDA stream. In a build without CUDA the second one throws. Internal to kernels.
#pragma once

#include "kernels/cuda/no_body.h"

namespace headrace {
class Stream;
class ThreadPool;
}  // namespace headrace

#ifdef HEADRACE_NO_CUDA_BODIES
#define HEADRACE_CUDA_BODY(name, Params) \
  inline void name(const Params&, Stream&) { no_body(#name); }
#else
#define HEADRACE_CUDA_BODY(name, Params) void name(const Params& params, Stream& stream);
#endif

// In namespace headrace::kernels.
#define HEADRACE_BODIES(name, Params)                \
  namespace cpu {                                    \
  void name(const Params& params, ThreadPool& pool); \
  }                                                  \
  namespace cuda {                                   \
  HEADRACE_CUDA_BODY(name, Params)                   \
  }
