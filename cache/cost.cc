#include "cache/cost.h"

#include <algorithm>

#include "cache/movement.h"

namespace headrace {
namespace {

// Of what is not a rate. Measured on an H200 with the shape of Llama-3.1-8B (bench/results/kernel_gpu_bench_h200.jsonl
// and bench_h200_llama-3.1-8b.json); a kernel's start and end cost much the same on any GPU.
//
// A product of 64 rows takes its bytes at the large one's rate and this: 15.0 us for 33.6 MB where the rate says 8.7,
// 17.7 for 50 MB (13.0), 36.5 for 117 MB (30.3).
constexpr double kProductUs = 4.5;
// Everything else of a layer in a decode step: norms, rope, the tail's attention, the fold's end, the activation. A
// step over 16,384 rows takes 5.99 ms; its products 4.47, its rows 0.52; 32 layers share the rest.
constexpr double kLayerUs = 31;
// Rows of products that a GPU multiplies in one pass over the weights (kernels/product.h).
constexpr int64_t kGroupRows = 64, kPrefillGroupRows = 2048;
// Prefill's products beside the largest of them: narrow matrices are slower (633 TFLOP/s and 725 beside 790), a GPU at
// full load lowers its clock, and norms, rope and activation lie between. 16,384 and 61,440 tokens agree to 7%.
constexpr double kPrefillProductShare = 0.73;
// A stream of 16 MiB copies from end to end of a step beside the link's peak.
constexpr double kLinkShare = 0.992;
// A layer's small kernels on a CPU: some ten tasks that several threads begin and end together.
constexpr double kCpuLayerUs = 60;
constexpr double kCpuPrefillShare = 0.85;  // as above: narrow matrices, and what lies between

double gb_ms(double bytes, double gb_per_s) { return bytes / gb_per_s * 1e-6; }
double tflop_ms(double flop, double tflop_per_s) { return flop / tflop_per_s * 1e-9; }

// Products of `rows` rows with all of the layers' matrices, and the head for as many.
double decode_products_ms(const ModelSizes& m, const MachineRates& rates, int64_t rows) {
  const double elements = static_cast<double>(m.layers * m.layer_weights() + m.head_weights());
  const double once = gb_ms(elements * static_cast<double>(m.type_bytes), rates.weights_gb_per_s);
  if (!rates.gpu) return std::max(once, tflop_ms(2 * elements * static_cast<double>(rows), rates.product_tflop_per_s));
  const double kernels = static_cast<double>(4 * m.layers + 1) * kProductUs * 1e-3;
  return static_cast<double>(ceil_div(rows, kGroupRows)) * (once + kernels);
}

// Of one layer's attention, products of all queries with `rows` keys and values.
double attention_flop(const ModelSizes& m, double queries, double rows) {
  return 4 * static_cast<double>(m.heads * m.head_dim) * queries * rows;
}

double attention_ms(const CostInput& in, double queries, int64_t rows) {
  const ModelSizes& m = in.model;
  const double bytes = static_cast<double>(m.rows.bytes_all_layers()) * static_cast<double>(rows);
  const double flop = attention_flop(m, queries, static_cast<double>(rows)) * static_cast<double>(m.layers);
  const double by_bytes = gb_ms(bytes, in.rates.kv_gb_per_s);
  return queries > 1 ? std::max(by_bytes, tflop_ms(flop, in.rates.queries_tflop_per_s)) : by_bytes;
}

double layers_ms(const CostInput& in) {
  return static_cast<double>(in.model.layers) * (in.rates.gpu ? kLayerUs : kCpuLayerUs) * 1e-3;
}

// Segments [resident, closed) of the layers that have rows in host memory or on disk.
StepMovement streamed(const CostInput& in, int64_t rows) {
  RowShape leaving = in.model.rows;
  leaving.layers = in.plan.host_layers;
  int64_t closed = segments_for(rows);
  if (closed > 0 && segment_range(closed - 1).end() > rows) --closed;
  if (leaving.layers == 0 || closed <= in.plan.resident_segments) return {};
  return plan_movement(leaving, in.plan.places, closed, in.plan.ring_slot_bytes);
}

double disk_ms(uint64_t bytes, double gb_per_s) {
  return gb_per_s > 0 ? gb_ms(static_cast<double>(bytes), gb_per_s) : 0;
}

}  // namespace

bool MachineRates::known() const {
  return to_device_gb_per_s > 0 && to_host_gb_per_s > 0 && weights_gb_per_s > 0 && kv_gb_per_s > 0 &&
         product_tflop_per_s > 0 && attention_tflop_per_s > 0 && queries_tflop_per_s > 0;
}

double PassCost::ms() const {
  const double both = beside ? std::max(link_ms, device_ms) : link_ms + device_ms;
  return std::max(both, disk_ms);
}

const char* PassCost::bound() const {
  if (disk_ms > link_ms && disk_ms > device_ms) return "disk";
  return link_ms > device_ms ? "link" : "device";
}

int64_t ModelSizes::layer_weights() const {
  return hidden * (heads + 2 * kv_heads) * head_dim + hidden * heads * head_dim + 3 * hidden * ffn;
}

PassCost step_cost(const CostInput& in, const PassShape& pass) {
  CHECK(in.rates.known() && pass.queries > 0 && pass.committed >= 0);
  PassCost cost;
  const bool partial = pass.mode == StepMode::kPartial;
  const int64_t rows = partial ? std::min(pass.partial.rows(), pass.committed) : pass.committed;
  const double elements = static_cast<double>(in.model.layers * in.model.layer_weights() + in.model.head_weights());
  cost.weight_bytes = static_cast<uint64_t>(elements) * static_cast<uint64_t>(in.model.type_bytes);
  cost.kv_bytes = in.model.rows.bytes_all_layers() * static_cast<uint64_t>(rows);
  const StepMovement movement = partial ? StepMovement() : streamed(in, pass.committed);
  cost.link_bytes = movement.bytes();
  cost.disk_bytes = movement.disk_bytes();
  cost.disk_ms = disk_ms(cost.disk_bytes, in.rates.disk_read_gb_per_s);
  cost.link_ms = gb_ms(static_cast<double>(cost.link_bytes), in.rates.to_device_gb_per_s) / kLinkShare;
  cost.device_ms = decode_products_ms(in.model, in.rates, pass.queries) + layers_ms(in) +
                   attention_ms(in, static_cast<double>(pass.queries), rows);
  cost.beside = in.rates.gpu;
  return cost;
}

PassCost prefill_cost(const CostInput& in, int64_t prompt_tokens) {
  CHECK(in.rates.known() && prompt_tokens > 0);
  const ModelSizes& m = in.model;
  const double tokens = static_cast<double>(prompt_tokens), layers = static_cast<double>(m.layers);
  PassCost cost;
  cost.weight_bytes = static_cast<uint64_t>(m.layers * m.layer_weights() * m.type_bytes);
  cost.kv_bytes = m.rows.bytes_all_layers() * static_cast<uint64_t>(prompt_tokens);
  const StepMovement movement = streamed(in, prompt_tokens);
  cost.link_bytes = movement.bytes();
  cost.disk_bytes = movement.disk_bytes();
  cost.disk_ms = disk_ms(cost.disk_bytes, in.rates.disk_write_gb_per_s);
  cost.link_ms = gb_ms(static_cast<double>(cost.link_bytes), in.rates.to_host_gb_per_s);
  const double flop = 2 * layers * static_cast<double>(m.layer_weights()) * tokens;
  const double products =
      tflop_ms(flop, in.rates.product_tflop_per_s) / (in.rates.gpu ? kPrefillProductShare : kCpuPrefillShare);
  const double groups = in.rates.gpu ? static_cast<double>(ceil_div(prompt_tokens, kPrefillGroupRows)) : 1;
  const double attention = tflop_ms(layers * attention_flop(m, tokens, tokens / 2), in.rates.attention_tflop_per_s);
  // A short prompt's weights are read all the same.
  const double least = gb_ms(static_cast<double>(cost.weight_bytes), in.rates.weights_gb_per_s);
  cost.device_ms = std::max(products, least) + attention + groups * layers_ms(in);
  cost.beside = in.rates.gpu;
  return cost;
}

double draft_ms(uint64_t draft_weights_bytes, int64_t levels, const MachineRates& rates) {
  const double pass = gb_ms(static_cast<double>(draft_weights_bytes), rates.weights_gb_per_s);
  // A layer, its head and the choice among its tokens.
  const double kernels = (rates.gpu ? 2 * kLayerUs + 5 * kProductUs : 2 * kCpuLayerUs) * 1e-3;
  return static_cast<double>(levels) * (pass + kernels);
}

}  // namespace headrace
