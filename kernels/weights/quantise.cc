#include "kernels/weights/quantise.h"

#include "kernels/weights/quantise_isa.h"

namespace headrace {
namespace kernels {
static const QuantiseKernels& picked_quantise_kernels() { return HEADRACE_PICK_ISA(quantise_kernels); }
}  // namespace kernels

void quantise_blocks(WeightType type, const float* values, int64_t count, void* blocks) {
  CHECK(can_quantise_to(type), weight_type_info(type).name);
  kernels::picked_quantise_kernels().quantise(type, values, count, blocks);
}

}  // namespace headrace
