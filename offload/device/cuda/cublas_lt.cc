#include "offload/device/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <type_traits>

#include "cache/base.h"
#include "offload/device/cuda/cuda_errors.h"

namespace headrace {
namespace {

std::string last_error() {
  const char* const text = dlerror();
  return text == nullptr ? "unknown error" : text;
}

const CublasLt& opened() {
  static const CublasLt& library = *new CublasLt(open_cublas_lt(cublas_lt_name()));  // never destroyed
  return library;
}

}  // namespace

std::string cublas_lt_name() { return str("libcublasLt.so.", CUBLAS_VER_MAJOR); }

CublasLt open_cublas_lt(const std::string& name) {
  CublasLt library;
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.error = last_error();
    return library;
  }
  const auto load = [&](auto* function, const char* symbol) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, symbol));
    if (*function == nullptr && library.error.empty()) library.error = last_error();
  };
  load(&library.create, "cublasLtCreate");
  load(&library.destroy, "cublasLtDestroy");
  load(&library.get_version, "cublasLtGetVersion");
  load(&library.get_status_string, "cublasLtGetStatusString");
  load(&library.matmul, "cublasLtMatmul");
  load(&library.matmul_algo_get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  load(&library.matmul_desc_create, "cublasLtMatmulDescCreate");
  load(&library.matmul_desc_destroy, "cublasLtMatmulDescDestroy");
  load(&library.matmul_desc_set_attribute, "cublasLtMatmulDescSetAttribute");
  load(&library.matmul_preference_create, "cublasLtMatmulPreferenceCreate");
  load(&library.matmul_preference_destroy, "cublasLtMatmulPreferenceDestroy");
  load(&library.matmul_preference_set_attribute, "cublasLtMatmulPreferenceSetAttribute");
  load(&library.matrix_layout_create, "cublasLtMatrixLayoutCreate");
  load(&library.matrix_layout_destroy, "cublasLtMatrixLayoutDestroy");
  return library;
}

const std::string& cublas_lt_error() { return opened().error; }

const CublasLt& cublas_lt() {
  const CublasLt& library = opened();
  if (!library.error.empty()) [[unlikely]]
    throw_error(ExitCode::kUsage, "--device", "cuda: " + why_no_cublas_lt(library.error), "use --device cpu, or auto");
  return library;
}

}  // namespace headrace
