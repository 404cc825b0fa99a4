// cuBLASLt's functions that are used, found at run time: at a program's start the library would take time and hundreds
// of MiB of memory, and where it is missing nothing would start, not even for the CPU. It is opened when the first GPU
// is looked at that can be used, and stays for the process's life. Any thread.
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

  std::string error{};  // the system's words when the library, or one of these, was not found; else empty
};

// "libcublasLt.so.13": that of the headers that this was built with.
std::string cublas_lt_name();
// Opens the library of that name or path, each time.
CublasLt open_cublas_lt(const std::string& name);

// Of the one that is used, opened when first asked for.
const std::string& cublas_lt_error();
// Throws Error if it cannot be used, which who has a CUDA device need not fear.
const CublasLt& cublas_lt();

}  // namespace headrace
