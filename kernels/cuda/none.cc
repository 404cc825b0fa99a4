// What stands in for the CUDA bodies in a build without them. A CUDA stream cannot be made there, so that reaching one
// of these means that the build is not what the device layer thinks it is.
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/no_body.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/sample.h"

namespace headrace::kernels::cuda {

void embedding(const EmbeddingParams&, Stream&) { no_body("embedding"); }
void rms_norm(const RmsNormParams&, Stream&) { no_body("rms_norm"); }
void rope(const RopeParams&, Stream&) { no_body("rope"); }
void rope_table(const RopeTableParams&, Stream&) { no_body("rope_table"); }
void silu_mul(const SiluMulParams&, Stream&) { no_body("silu_mul"); }
void commit_rows(const CommitParams&, Stream&) { no_body("commit_rows"); }
void fill_ring(const FillRingParams&, Stream&) { no_body("fill_ring"); }
void product(const ProductParams&, Stream&) { no_body("product"); }
uint64_t product_library_version() { no_body("product"); }
void sample(const SampleParams&, Stream&) { no_body("sample"); }

}  // namespace headrace::kernels::cuda
