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

}  // namespace headrace
