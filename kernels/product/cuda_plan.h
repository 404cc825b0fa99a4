// Uses cuBLASLt as docs/design.md, section 6, rule 1, requires: one pinned algorithm for each weight shape, type, group
// size and epilogue. It is the first of the heuristic's list, in its order, that passes a check: one row has the same
// bits in each place, among different neighbours, twice, and they equal the fp32 sum rounded once. (Hopper's kernels
// round before they add a residual.) If no algorithm passes with a bias or a residual, the sums stay in fp32 and a
// kernel of ours finishes them. Nothing is timed. The stream's attachment owns its plans, cuBLASLt handle and memory.
// The first product of a kind runs the check: it allocates, waits for the stream, and cannot be captured in a graph.
// All later ones only enqueue. Threads: as for the stream (stream.h).
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
  // The stream's plans, created on first use.
  static ProductPlans& of(CudaStream& stream);
  explicit ProductPlans(CudaStream& stream);
  ~ProductPlans();

  // `params.rows` is the group's size. False: no cuBLASLt algorithm passes; nothing was enqueued.
  bool run(const ProductParams& params);
  std::vector<std::string> plain() const;       // the kinds without such an algorithm
  DeviceBuffer& sums() { return sums_; }        // kProductSumsBytes, free between products
  DeviceBuffer& arrived() { return arrived_; }  // kProductArrivedBytes, zeros between products

 private:
  const ProductPlan& plan_for(const ProductParams& params, const ProductShape& shape);
  void run_plan(const ProductPlan& plan, const ProductParams& params);
  bool run_sums(const ProductParams& params);

  CudaStream& stream_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_, sums_, arrived_;
  std::vector<std::unique_ptr<ProductPlan>> plans_;
  std::vector<ProductShape> plain_;
};

}  // namespace headrace::kernels::cuda
