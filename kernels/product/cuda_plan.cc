#include "kernels/product/cuda_plan.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

#include "kernels/product/cuda_kernels.h"
#include "offload/device/cuda/check.h"
#include "offload/device/cuda/cublas_lt.h"

namespace headrace::kernels::cuda {

namespace {

constexpr int kCandidates = 16;
constexpr int kRunsAPattern = 2;
constexpr int64_t kSumsColumns = 64;

std::string describe(const ProductShape& shape) {
  return str(shape.rows, " x ", shape.n, " x ", shape.k, " ", dtype_name(shape.type), " to ",
             dtype_name(shape.out_type));
}

void check_lt(cublasStatus_t status, const char* call, const ProductShape& shape) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  throw_error(status == CUBLAS_STATUS_ALLOC_FAILED ? ExitCode::kDoesNotFit : ExitCode::kInternal, call,
              str(cublas_lt().get_status_string(status), ", for a product of ", describe(shape)));
}

cudaDataType_t data_type(DType type) {
  return type == DType::kF32 ? CUDA_R_32F : type == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

// The alignment of every row of an aligned array: a power of two, at most 16.
uint32_t alignment_of_rows(int64_t cols, DType type) {
  const uint64_t bytes = static_cast<uint64_t>(cols) * dtype_bytes(type);
  uint32_t alignment = 16;
  while (bytes % alignment != 0) alignment /= 2;
  return alignment;
}

}  // namespace

// cuBLASLt's matrices are column-major: D [n, rows] = op(A) B + C, where A is w as [k, n], transposed, and B is x as
// [k, rows]. C is the residual, added in fp32 before the only rounding.
class ProductPlan {
 public:
  explicit ProductPlan(const ProductShape& plan_shape) : shape(plan_shape) {
    check_lt(cublas_lt().matmul_desc_create(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate",
             shape);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    if (shape.bias) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    }
    make_layout(&w_, shape.type, shape.k, shape.n);
    make_layout(&x_, shape.type, shape.k, shape.rows);
    make_layout(&out_, shape.out_type, shape.n, shape.rows);
  }
  ProductPlan(const ProductPlan&) = delete;
  ProductPlan& operator=(const ProductPlan&) = delete;
  ~ProductPlan() {
    if (out_ != nullptr) cublas_lt().matrix_layout_destroy(out_);
    if (x_ != nullptr) cublas_lt().matrix_layout_destroy(x_);
    if (w_ != nullptr) cublas_lt().matrix_layout_destroy(w_);
    if (operation_ != nullptr) cublas_lt().matmul_desc_destroy(operation_);
  }

  // The heuristic's algorithms, in its order.
  std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(cublas_lt().matmul_preference_create(&preference), "cublasLtMatmulPreferenceCreate", shape);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_lt(cublas_lt().matmul_preference_set_attribute(preference, attribute, &value, sizeof value),
               "cublasLtMatmulPreferenceSetAttribute", shape);
    };
    const uint64_t workspace_bytes = kProductWorkspaceBytes;
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // A split sum is reduced in fp32, in a fixed order.
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    const uint32_t in = alignment_of_rows(shape.k, shape.type);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, in);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, in);
    const uint32_t out = alignment_of_rows(shape.n, shape.out_type);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out);
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
    int count = 0;
    const cublasStatus_t status = cublas_lt().matmul_algo_get_heuristic(
        handle, operation_, w_, x_, out_, out_, preference, kCandidates, results.data(), &count);
    cublas_lt().matmul_preference_destroy(preference);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return algorithms;
    check_lt(status, "cublasLtMatmulAlgoGetHeuristic", shape);
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
      if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
    }
    return algorithms;
  }

  // REQUIRES: params of this shape.
  cublasStatus_t run(const ProductParams& params, const cublasLtMatmulAlgo_t& with, cublasLtHandle_t handle,
                     const DeviceBuffer& workspace, void* stream) const {
    if (shape.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, params.bias);
    const float alpha = 1.0f, beta = shape.residual ? 1.0f : 0.0f;
    const void* residual = shape.residual ? params.residual : params.out;
    return cublas_lt().matmul(handle, operation_, &alpha, params.weight.parts[0].data, w_, params.x, x_, &beta,
                              residual, out_, params.out, out_, &with, workspace.data(), workspace.bytes(),
                              static_cast<cudaStream_t>(stream));
  }

  const ProductShape shape;
  bool usable = false;
  cublasLtMatmulAlgo_t algorithm{};  // the pinned one, if usable

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    check_lt(cublas_lt().matmul_desc_set_attribute(operation_, attribute, &value, sizeof value),
             "cublasLtMatmulDescSetAttribute", shape);
  }
  void make_layout(cublasLtMatrixLayout_t* layout, DType type, int64_t rows, int64_t cols) const {
    check_lt(cublas_lt().matrix_layout_create(layout, data_type(type), static_cast<uint64_t>(rows),
                                              static_cast<uint64_t>(cols), rows),
             "cublasLtMatrixLayoutCreate", shape);
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, out_ = nullptr;
};

namespace {

// Checks the algorithms of one plan with the caller's weights and bias. Frees its memory at the end.
class StartUpCheck {
 public:
  StartUpCheck(const ProductPlan& plan, const ProductParams& params, cublasLtHandle_t handle,
               const DeviceBuffer& workspace, CudaStream& stream)
      : plan_(plan), params_(params), handle_(handle), workspace_(workspace), stream_(stream) {
    const ProductShape& shape = plan.shape;
    const auto bytes = [](int64_t count, DType type) { return static_cast<uint64_t>(count) * dtype_bytes(type); };
    const std::string what = str("checking the product of ", shape.rows, " x ", shape.n, " x ", shape.k);
    x_ = stream.device().allocate(bytes(shape.rows * shape.k, shape.type), what);
    out_ = stream.device().allocate(bytes(shape.rows * shape.n, shape.out_type), what);
    if (shape.residual) residual_ = stream.device().allocate(bytes(shape.n, shape.out_type), what);
    expected_ = stream.device().allocate(bytes(shape.n, shape.out_type), what);
    mismatches_ = stream.device().allocate(sizeof(int32_t), what);
    params_.x = x_.data();
    params_.out = out_.data();
    params_.out_type = shape.out_type;
    if (!shape.bias) params_.bias = nullptr;
    params_.residual = shape.residual ? out_.data() : nullptr;  // in place
  }

  bool passes(const cublasLtMatmulAlgo_t& algorithm) {
    auto* const native = static_cast<cudaStream_t>(stream_.native());
    const size_t row_bytes = static_cast<size_t>(plan_.shape.n) * dtype_bytes(plan_.shape.out_type);
    check_cuda(cudaMemsetAsync(mismatches_.data(), 0, sizeof(int32_t), native), "cudaMemsetAsync");
    for (int run = 0; run < kCheckPatterns * kRunsAPattern; ++run) {
      const int pattern = run % kCheckPatterns;
      fill_check_rows({x_.data(), plan_.shape.type, plan_.shape.rows, plan_.shape.k, pattern}, stream_);
      const CheckRows out = {out_.data(), plan_.shape.out_type, plan_.shape.rows, plan_.shape.n, pattern};
      if (plan_.shape.residual) {
        fill_check_rows(out, stream_);
        if (run == 0) stream_.copy(residual_.data(), out_.data(), row_bytes, Link::kWithinDevice);
      }
      if (plan_.run(params_, algorithm, handle_, workspace_, native) != CUBLAS_STATUS_SUCCESS) return false;
      if (run == 0) {  // pattern 0 marks row 0
        stream_.copy(expected_.data(), out_.data(), row_bytes, Link::kWithinDevice);
        ProductParams sum = params_;
        if (plan_.shape.residual) sum.residual = residual_.data();
        compare_with_sum(sum, expected_.data(), mismatches_.as<int32_t>(), stream_);
      }
      compare_check_rows(out, expected_.data(), mismatches_.as<int32_t>(), stream_);
    }
    int32_t mismatches = 0;
    check_cuda(cudaMemcpyAsync(&mismatches, mismatches_.data(), sizeof mismatches, cudaMemcpyDeviceToHost, native),
               "cudaMemcpyAsync");
    stream_.synchronize();
    return mismatches == 0;
  }

 private:
  const ProductPlan& plan_;
  ProductParams params_;
  cublasLtHandle_t handle_;
  const DeviceBuffer& workspace_;
  CudaStream& stream_;
  DeviceBuffer x_, out_, residual_, expected_, mismatches_;
};

bool aligned_to(const void* pointer, uint32_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

}  // namespace

ProductPlans& ProductPlans::of(CudaStream& stream) {
  if (!stream.attachment()) stream.attachment() = std::make_shared<ProductPlans>(stream);
  return *static_cast<ProductPlans*>(stream.attachment().get());
}

ProductPlans::ProductPlans(CudaStream& stream)
    : stream_(stream),
      workspace_(stream.device().allocate(kProductWorkspaceBytes, "the products' workspace")),
      sums_(stream.device().allocate(kProductSumsBytes, "the products' sums")),
      arrived_(stream.device().allocate(kProductArrivedBytes, "the products' counters")) {
  stream.native();  // makes its device current
  check_lt(cublas_lt().create(&handle_), "cublasLtCreate", {});
}

ProductPlans::~ProductPlans() {
  plans_.clear();
  if (handle_ != nullptr) cublas_lt().destroy(handle_);
}

const ProductPlan& ProductPlans::plan_for(const ProductParams& params, const ProductShape& shape) {
  for (const auto& plan : plans_) {  // a model has a few dozen
    if (plan->shape == shape) return *plan;
  }
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream_.native()), &capturing), "cudaStreamIsCapturing");
  CHECK(capturing == cudaStreamCaptureStatusNone, "the first product of ", shape.rows, " x ", shape.n, " x ", shape.k,
        " is being captured");
  auto plan = std::make_unique<ProductPlan>(shape);
  const std::vector<cublasLtMatmulAlgo_t> candidates = plan->candidates(handle_);
  if (!candidates.empty()) {
    StartUpCheck check(*plan, params, handle_, workspace_, stream_);
    for (const cublasLtMatmulAlgo_t& candidate : candidates) {
      if (!check.passes(candidate)) continue;
      plan->algorithm = candidate;
      plan->usable = true;
      break;
    }
    stream_.synchronize();  // before the check's memory is freed
  }
  plans_.push_back(std::move(plan));
  return *plans_.back();
}

void ProductPlans::run_plan(const ProductPlan& plan, const ProductParams& params) {
  check_lt(plan.run(params, plan.algorithm, handle_, workspace_, stream_.native()), "cublasLtMatmul", plan.shape);
  stream_.check_launch("product (cuBLASLt)");
}

// Computes as many columns at a time as the buffer of sums holds.
bool ProductPlans::run_sums(const ProductParams& params) {
  const int64_t fit =
      static_cast<int64_t>(kProductSumsBytes / sizeof(float)) / params.rows / kSumsColumns * kSumsColumns;
  const auto for_columns = [&](const auto& body) {
    for (int64_t col = 0; col < params.n; col += fit) {
      ProductParams part = params;
      part.n = std::min(fit, params.n - col);
      const int64_t begin = col * params.k * static_cast<int64_t>(dtype_bytes(params.type));
      part.weight = plain_weight(static_cast<const std::byte*>(params.weight.parts[0].data) + begin, params.type,
                                 part.n, params.k);
      part.out = sums_.data();
      const ProductShape shape = {part.rows, part.n, part.k, part.type, DType::kF32, false, false};
      if (!body(plan_for(part, shape), part, col)) return false;
    }
    return true;
  };
  // All columns or none, because the output may be the residual.
  if (!for_columns([](const ProductPlan& plan, const ProductParams&, int64_t) { return plan.usable; })) return false;
  return for_columns([&](const ProductPlan& plan, const ProductParams& part, int64_t col) {
    run_plan(plan, part);
    finish_product(params, {sums_.as<float>(), col, part.n}, stream_);
    return true;
  });
}

bool ProductPlans::run(const ProductParams& params) {
  const uint32_t out_alignment = alignment_of_rows(params.n, params.out_type);
  if (!aligned_to(params.x, 16) || !aligned_to(params.weight.parts[0].data, 16) || !aligned_to(params.bias, 16) ||
      !aligned_to(params.out, out_alignment) || !aligned_to(params.residual, out_alignment)) {
    return false;
  }
  const bool bias = params.bias != nullptr, residual = params.residual != nullptr;
  const ProductShape shape = {params.rows, params.n, params.k, params.type, params.out_type, bias, residual};
  if (!bias || params.out_type == params.type) {  // cuBLASLt's bias has the type of the output
    const ProductPlan& plan = plan_for(params, shape);
    if (plan.usable) {
      run_plan(plan, params);
      return true;
    }
  }
  if ((bias || residual) && run_sums(params)) return true;
  if (std::find(plain_.begin(), plain_.end(), shape) == plain_.end()) plain_.push_back(shape);
  return false;
}

std::vector<std::string> ProductPlans::plain() const {
  std::vector<std::string> kinds;
  for (const ProductShape& s : plain_) kinds.push_back(describe(s));
  return kinds;
}

}  // namespace headrace::kernels::cuda
