// What stands in for attention's CUDA bodies in a build without them.
#include "kernels/attention/cuda.h"
#include "kernels/cuda/no_body.h"

namespace headrace::kernels::cuda {

void prefill_attention(const PrefillAttentionParams&, Stream&) { no_body("prefill_attention"); }
void prefix_attention(const PrefixAttentionParams&, Stream&) { no_body("prefix_attention"); }
void tail_attention(const TailAttentionParams&, Stream&) { no_body("tail_attention"); }
void clear_state(const ClearStateParams&, Stream&) { no_body("clear_state"); }

}  // namespace headrace::kernels::cuda
