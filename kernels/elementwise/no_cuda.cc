// What stands in for the element-wise ops' CUDA bodies in a build without them.
#include "kernels/cuda/no_body.h"
#include "kernels/elementwise/cuda.h"

namespace headrace::kernels::cuda {

void embedding(const EmbeddingParams&, Stream&) { no_body("embedding"); }
void rms_norm(const RmsNormParams&, Stream&) { no_body("rms_norm"); }
void rope(const RopeParams&, Stream&) { no_body("rope"); }
void rope_table(const RopeTableParams&, Stream&) { no_body("rope_table"); }
void silu_mul(const SiluMulParams&, Stream&) { no_body("silu_mul"); }
void commit_rows(const CommitParams&, Stream&) { no_body("commit_rows"); }
void fill_ring(const FillRingParams&, Stream&) { no_body("fill_ring"); }

}  // namespace headrace::kernels::cuda
