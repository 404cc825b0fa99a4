// The functions of cuBLASLt that we use, loaded at run time. Linking the library would cost time and hundreds of MiB at
// every start, and without it the program would not start even for the CPU. It is opened when the first usable GPU is
// inspected, and is never unloaded. Any thread.
#pragma once

#include <cublasLt.h>

#include <string>

namespace headrace {

struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) matmul_preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) matmul_preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy = nullptr;

  std::string error{};  // the system's message if the library or one of these was not found; else empty
};

// "libcublasLt.so.13": the version of the headers of this build.
std::string cublas_lt_name();
// Opens the library of this name or path at every call.
CublasLt open_cublas_lt(const std::string& name);

// The library in use, opened at the first call.
const std::string& cublas_lt_error();
// Throws Error if it cannot be used, which cannot happen once a CUDA device is open.
const CublasLt& cublas_lt();

}  // namespace headrace
