// What can be said of cuBLASLt without a GPU: that it is found where CUDA is installed, and what is said where it is
// not.
#include "offload/device/cuda/cublas_lt.h"

#include <gtest/gtest.h>

#include "cache/base.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

TEST(CublasLt, IsThatOfTheHeaders) {
  EXPECT_EQ(cublas_lt_error(), "");
  const CublasLt& library = cublas_lt();
  EXPECT_EQ(library.get_version() / 10000, static_cast<size_t>(CUBLAS_VER_MAJOR));
  EXPECT_STREQ(library.get_status_string(CUBLAS_STATUS_SUCCESS), "success");
  EXPECT_EQ(&cublas_lt(), &library);
  EXPECT_EQ(cublas_lt_name(), str("libcublasLt.so.", CUBLAS_VER_MAJOR));
}

// What needs no GPU of what products ask of it: a mistaken entry of the table would not give these back.
TEST(CublasLt, HasEachFunctionInItsPlace) {
  const CublasLt& library = cublas_lt();
  cublasLtMatmulDesc_t operation = nullptr;
  ASSERT_EQ(library.matmul_desc_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  EXPECT_EQ(library.matmul_desc_set_attribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(library.matmul_desc_set_attribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 1),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(library.matmul_desc_destroy(operation), CUBLAS_STATUS_SUCCESS);
  cublasLtMatrixLayout_t layout = nullptr;
  ASSERT_EQ(library.matrix_layout_create(&layout, CUDA_R_16BF, 64, 32, 64), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(library.matrix_layout_destroy(layout), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreference_t preference = nullptr;
  ASSERT_EQ(library.matmul_preference_create(&preference), CUBLAS_STATUS_SUCCESS);
  const uint64_t workspace_bytes = kMiB;
  EXPECT_EQ(library.matmul_preference_set_attribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace_bytes, sizeof workspace_bytes),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(library.matmul_preference_destroy(preference), CUBLAS_STATUS_SUCCESS);
  for (const bool there : {library.create != nullptr, library.destroy != nullptr, library.matmul != nullptr,
                           library.matmul_algo_get_heuristic != nullptr}) {
    EXPECT_TRUE(there);
  }
}

TEST(CublasLt, ThatIsMissingIsSaid) {
  EXPECT_EQ(open_cublas_lt("libcublasLt.so.0").error,
            "libcublasLt.so.0: cannot open shared object file: No such file or directory");
  const TemporaryFolder folder;
  folder.write("libcublasLt.so", "no library");
  EXPECT_EQ(open_cublas_lt(folder / "libcublasLt.so").error, (folder / "libcublasLt.so") + ": file too short");
}

TEST(CublasLt, ThatLacksAFunctionIsSaid) {
  const std::string error = open_cublas_lt("libm.so.6").error;
  EXPECT_NE(error.find("libm.so.6: undefined symbol: cublasLtCreate"), std::string::npos) << error;
}

}  // namespace
}  // namespace headrace
