// What a decoder's sizes say of its weights (cache/cost.h).
#include <algorithm>
#include <cmath>

#include "cache/cost.h"

namespace headrace {

int64_t ModelSizes::shared_weights() const {
  const int64_t attention = hidden * ((gated ? 3 : 2) * heads + 2 * kv_heads) * head_dim;
  const int64_t delta = hidden * (recurrent.in_width() + recurrent.v_width());
  return (attention_weights > 0 ? attention_weights : attention_layers() * attention) + recurrent.layers * delta +
         layers * hidden * (3 * ffn + experts.count);
}

int64_t ModelSizes::weights() const { return shared_weights() + layers * 3 * hidden * experts.used * experts.ffn; }
int64_t ModelSizes::expert_weights() const { return layers * 3 * hidden * experts.count * experts.ffn; }

uint64_t ModelSizes::layers_bytes() const {
  return stored_layers_bytes > 0 ? stored_layers_bytes : static_cast<uint64_t>(shared_weights() * type_bytes);
}
uint64_t ModelSizes::head_bytes() const {
  return stored_head_bytes > 0 ? stored_head_bytes : static_cast<uint64_t>(head_weights() * type_bytes);
}
uint64_t ModelSizes::step_bytes(int64_t queries) const {
  return layers_bytes() + head_bytes() +
         static_cast<uint64_t>(experts.read_share(queries) * static_cast<double>(experts.stored_bytes));
}

double ExpertSizes::read_share(int64_t rows) const {
  if (count == 0) return 0;
  const double unused = 1 - static_cast<double>(used) / static_cast<double>(count);
  return 1 - std::pow(unused, static_cast<double>(rows));
}

double experts_products_ms(const ExpertSizes& experts, const MachineRates& rates, int64_t rows) {
  if (experts.count == 0) return 0;
  const double share = experts.read_share(rows);
  double plain = static_cast<double>(experts.stored_bytes);
  std::vector<QuantisedBytes> read = experts.quantised;
  for (QuantisedBytes& each : read) {
    plain -= static_cast<double>(each.bytes);
    each.bytes = static_cast<uint64_t>(share * static_cast<double>(each.bytes));
  }
  const double of_expert = static_cast<double>(rows * experts.used) / (share * static_cast<double>(experts.count));
  return gb_ms(share * plain, rates.weights_gb_per_s) +
         quantised_products_ms(read, rates, std::max<int64_t>(1, std::llround(of_expert)));
}

}  // namespace headrace
