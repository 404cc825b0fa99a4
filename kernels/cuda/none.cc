// What stands in for the CUDA bodies in a build without them. A CUDA stream cannot be made there, so that reaching one
// of these means that the build is not what the device layer thinks it is.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/sample.h"

namespace headrace::kernels::cuda {

namespace {
[[noreturn]] void no_body(const char* op) {
  throw_error(ExitCode::kUsage, str("kernel ", op), "this build has no CUDA body for it",
              "use --device cpu, or build where nvcc is found");
}
}  // namespace

void embedding(const EmbeddingParams&, Stream&) { no_body("embedding"); }
void rms_norm(const RmsNormParams&, Stream&) { no_body("rms_norm"); }
void rope(const RopeParams&, Stream&) { no_body("rope"); }
void rope_table(const RopeTableParams&, Stream&) { no_body("rope_table"); }
void silu_mul(const SiluMulParams&, Stream&) { no_body("silu_mul"); }
void commit_rows(const CommitParams&, Stream&) { no_body("commit_rows"); }
void product(const ProductParams&, Stream&) { no_body("product"); }
void prefill_attention(const PrefillAttentionParams&, Stream&) { no_body("prefill_attention"); }
void prefix_attention(const PrefixAttentionParams&, Stream&) { no_body("prefix_attention"); }
void tail_attention(const TailAttentionParams&, Stream&) { no_body("tail_attention"); }
void clear_state(const ClearStateParams&, Stream&) { no_body("clear_state"); }
void sample(const SampleParams&, Stream&) { no_body("sample"); }

}  // namespace headrace::kernels::cuda
