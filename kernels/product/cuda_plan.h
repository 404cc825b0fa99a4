// cuBLASLt as docs/design.md, section 6, rule 1, requires it: for every weight shape, its types, the group's size and
// the epilogue one pinned algorithm, the first of the heuristic's list, in its order, that passes a check: a row has
// the same bits in each place, among different neighbours, twice, and they are those of the sum in fp32, rounded once.
// (Hopper's own kernels round before they add a residual.) If none passes with a bias or a residual, the sums stay in
// fp32 and a kernel of ours ends them. Nothing is ever timed. A stream's plans, its cuBLASLt handle and its memory live
// in the stream's attachment. The first product of a kind checks (it allocates, waits for the stream, and cannot be
// captured in a graph); all others only enqueue. Threads as stream.h says.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/product/cuda_memory.h"
#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {

struct ProductShape {
  int64_t rows, n, k;  // rows: the group's size
  DType type, out_type;
  bool bias, residual;
  bool operator==(const ProductShape&) const = default;
};

class ProductPlan;  // one kind of product with its algorithm

class ProductPlans {
 public:
  // Those of the stream, made when first asked for.
  static ProductPlans& of(CudaStream& stream);
  explicit ProductPlans(CudaStream& stream);
  ~ProductPlans();

  // `params.rows` is the group's size. False: cuBLASLt has no algorithm for it that passes; nothing was enqueued.
  bool run(const ProductParams& params);
  std::vector<std::string> plain() const;  // the kinds for which it has none

 private:
  const ProductPlan& plan_for(const ProductParams& params, const ProductShape& shape);
  void run_plan(const ProductPlan& plan, const ProductParams& params);
  bool run_sums(const ProductParams& params);

  CudaStream& stream_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_, sums_;
  std::vector<std::unique_ptr<ProductPlan>> plans_;
  std::vector<ProductShape> plain_;
};

}  // namespace headrace::kernels::cuda
