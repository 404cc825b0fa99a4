#include <algorithm>

#include "cache/cost.h"

namespace headrace {

bool MachineRates::known() const {
  return to_device_gb_per_s > 0 && to_host_gb_per_s > 0 && weights_gb_per_s > 0 && kv_gb_per_s > 0 &&
         product_tflop_per_s > 0 && attention_tflop_per_s > 0 && queries_tflop_per_s > 0;
}

double PassCost::ms() const {
  CHECK(known);
  const double both = beside ? std::max(link_ms, device_ms + fetch_ms) : link_ms + device_ms;
  return std::max(both, disk_ms) + fill_ms;
}

const char* PassCost::bound() const {
  CHECK(known);
  if (disk_ms > link_ms && disk_ms > device_ms) return "disk";
  return link_ms > device_ms ? "link" : "device";
}

// Of experts with a slab, those of the expected ones that are not there, and those that have no slot.
uint64_t streamed_weight_bytes(const CostInput& in, int64_t rows) {
  if (!in.plan.host_experts_alone) return in.plan.host_weights_bytes;
  const auto count = static_cast<double>(in.model.experts.count), slots = static_cast<double>(in.plan.expert_slots);
  const double read = count * in.model.experts.read_share(rows);
  const double there = std::min(read * expert_hit_rate(in.plan.expert_slots, in.model.experts.count), slots);
  return static_cast<uint64_t>((read - there) / count * static_cast<double>(in.plan.host_weights_bytes));
}

}  // namespace headrace
