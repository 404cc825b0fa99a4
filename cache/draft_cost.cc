#include "cache/draft_cost.h"

namespace headrace {
namespace {

// The kernels of one layer, the head, and the selection among the logits, beside the bytes: as much as two of a
// target's layers and five products (cost.cc).
constexpr double kLevelUs = 88.5, kCpuLevelUs = 120;

}  // namespace

double draft_ms(const DraftPass& pass, int64_t levels, const MachineRates& rates) {
  double plain = static_cast<double>(pass.bytes), quantised_ms = 0;
  if (rates.gpu) {
    for (const QuantisedBytes& each : pass.quantised) plain -= static_cast<double>(each.bytes);
    quantised_ms = quantised_products_ms(pass.quantised, rates, 1);
  }
  const double read = gb_ms(plain, rates.weights_gb_per_s) + quantised_ms +
                      gb_ms(static_cast<double>(pass.rows_bytes), rates.kv_gb_per_s);
  return static_cast<double>(levels) * (read + (rates.gpu ? kLevelUs : kCpuLevelUs) * 1e-3);
}

double draft_prefill_ms(const DraftPass& pass, int64_t prompt_tokens, const MachineRates& rates) {
  const double flop = 2 * static_cast<double>(pass.prompt_weights) * static_cast<double>(prompt_tokens);
  return tflop_ms(flop, rates.product_tflop_per_s);
}

}  // namespace headrace
