// The bodies of kernels/product/op.h. On the CPU, k alone decides how an output element's sum over k is divided and
// ordered, so its bits depend neither on the other rows and columns of the call nor on the threads. Quantised weights
// are rounded to the product's type in prefill; on the decode path only in bf16 with AVX-512 BF16. Internal to the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/product/op.h"

namespace headrace::kernels {

HEADRACE_BODIES(product, ProductParams)
HEADRACE_BODIES(grouped_product, GroupedProductParams)

namespace cpu {
uint64_t product_thread_bytes(const ProductParams& params);  // what each thread keeps for weights in blocks
}

namespace cuda {
#ifdef HEADRACE_NO_CUDA_BODIES
inline bool normalises_input(const ProductParams&) { no_body("product"); }
inline bool gated_product(const ProductParams&, void*, Stream&) { no_body("gated_product"); }
inline bool rotated_product(const ProductParams&, const RopeParams&, Stream&) { no_body("rotated_product"); }
inline bool grouped_gated_product(const GroupedProductParams&, void*, Stream&) { no_body("grouped_gated_product"); }
inline std::vector<std::string> plain_products(Stream&) { no_body("product"); }
inline uint64_t product_library_version() { no_body("product"); }
#else
bool normalises_input(const ProductParams& params);  // product() and gated_product() apply the norm themselves
// One launch each. False: one launch cannot compute it, and nothing was enqueued.
bool gated_product(const ProductParams& params, void* activated, Stream& stream);
bool rotated_product(const ProductParams& params, const RopeParams& rope, Stream& stream);
bool grouped_gated_product(const GroupedProductParams& params, void* activated, Stream& stream);
std::vector<std::string> plain_products(Stream& stream);
uint64_t product_library_version();
#endif
}  // namespace cuda

}  // namespace headrace::kernels
