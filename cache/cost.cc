#include "cache/cost.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include "cache/attention_parts.h"
#include "cache/stream_schedule.h"

namespace headrace {
namespace {

// Fixed costs beside the rates: launches, and tiles that do not fill the card. Measured on an H200 over seven shapes
// from Qwen2.5-0.5B to Llama-3.1-8B and prompts of 256 to 61,440 tokens (bench/results/bench_h200_*_predicted*.json and
// bench_h200_*_short.json). With the rates of a profile they predict those runs to within 12%. They are similar on any
// GPU.
//
// A product of 64 rows takes its bytes at the rate of a large product, plus this: 15.0 us for 33.6 MB where the rate
// alone gives 8.7, 17.7 for 50 MB (13.0), 36.5 for 117 MB (30.3).
constexpr double kProductUs = 4.5;
// Beyond the rate of a large product, products of 512 rows take 3 to 11 us, products of 2,048 rows 0 to 28: their last
// tiles do not fill the card.
constexpr double kMiddleProductUs = 7, kLargeProductUs = 13;
// The rest of a layer without the prefix: norms, RoPE, tail attention, activation. A step over 256 tokens, which has no
// prefix, takes 19 us a layer beside its products (Llama-3.1-8B) to 25 (Qwen3-0.6B).
constexpr double kLayerUs = 22;
// One more small kernel: a norm of 3.5 us.
constexpr double kSmallKernelUs = 3.5;
// Few rows: the router, the choice with its lists, the sum. Not measured since these were more kernels.
constexpr int kExpertKernels = 3;
// The prefix: its two kernels, and at least one segment of one KV head, which one block reads at its own rate. With few
// large segments (30,720 tokens) the other blocks finish long before it.
constexpr double kPrefixUs = 11, kBlockGbPerS = 27;
// A chunk of a step that streams, beside its bytes and products. Attention over it, its fold and the kernel that makes
// rows are launches of their own, and a chunk has too few thread blocks to fill the card while the longest of them
// runs: by refreshes of 60 to 205 nodes with an int8 copy.
constexpr double kChunkUs = 58;
// Attention over rows of fewer bits is bound by its instructions where memory is as fast as an H200's: what a query of
// four heads a KV head reads, and how much longer more rows of q take (bench/results/bench_h200_mend.jsonl).
struct RowsFactor {
  int64_t rows;
  double factor;
};
struct LowBitPace {
  double gb_per_s;
  double wide;                       // how much longer heads of 256 take
  std::span<const RowsFactor> rows;  // of q of one KV head
};
constexpr RowsFactor kQueriesOfInt8[] = {{4, 1},      {16, 1.16},  {32, 1.46},  {64, 2.84},
                                         {256, 8.85}, {800, 27.6}, {1536, 44.9}};
constexpr RowsFactor kQueriesOfInt4[] = {{4, 1},      {16, 1.06},  {32, 1.23},  {64, 1.35},
                                         {256, 4.04}, {800, 13.3}, {1536, 23.0}};
constexpr LowBitPace kInt8Pace = {3490, 1.9, kQueriesOfInt8}, kInt4Pace = {1092, 1.33, kQueriesOfInt4};
// Heads of 256 take longer for as many elements than heads of 128, which rates are of, and exact rows of them are read
// at no more than this (kernel_bench_h200_heads.jsonl).
constexpr double kWidePrefill = 1.22, kWideQueries = 1.36, kWideGbPerS = 2900;
// Making rows of an int8 copy and remainders (kernel_bench_h200_remainders.jsonl): values a microsecond.
constexpr double kMadeValuesPerUs = 498e3;
// Rows of products that a GPU multiplies in one pass over the weights (kernels/product/op.h).
constexpr int64_t kGroupRows = 64, kMiddleGroupRows = 512, kPrefillGroupRows = 2048;
// A GPU under full load lowers its clock.
constexpr double kPrefillProductShare = 0.9;
// The share of the rows' read rate that their conversion to int8 reaches: by prototypes of the kernels.
constexpr double kConvertedShare = 0.6;
// Host work of a run before its layers, and between them and the first token: memory, tables, waits.
constexpr double kPrefillMs = 2.2;
// The share of the link's peak that a step-long stream of 16 MiB copies reaches.
constexpr double kLinkShare = 0.992;
// The same of remainders, whose copies are smaller: by refreshes of 60 nodes (partial_h200_quarter_streamed.json).
constexpr double kRemainderLinkShare = 0.92;
// A layer's small kernels on a CPU: about ten tasks that several threads start and join.
constexpr double kCpuLayerUs = 60;
constexpr double kCpuPrefillShare = 0.85;  // narrow matrices, and the work between them

// Quantised weights on a GPU (bench/results/kernel_bench_h200_*, all products of a step in one graph). A step of
// Llama-3.1-8B has 129 products and one of Qwen3-32B 257: by both (q4_k_m_many_rows, step_qwen3-32b) a product
// takes 1.7 us beside its bytes. `share`: of the rate of a large plain product by one row, 3,750 GB/s there (3,622 in
// profile_h200.json, 3,880 by its bench). Instructions bind, so a card with slower memory may reach more. `rows`: how
// much longer more rows take; between two lines it is interpolated, behind the last in proportion.
constexpr double kQuantisedProductUs = 1.7;
// An H100 reads at 2,713 GB/s by its sheet, and takes 0.26 ms more for the 4.2 GB of an 8B in Q4_K at 1 and at 8 rows
// (kernel_bench_h100_step.jsonl): this share of what it reads them slower. On cards with much slower memory reading
// them is all.
constexpr double kPaceGbPerS = 3880, kReadShare = 0.556;
// q4_k_m_many_rows; 48 rows do take longer than 64.
constexpr RowsFactor kUsualRows[] = {{1, 1},     {2, 1.08},  {4, 1.18},  {8, 1.27},   {16, 1.48}, {32, 2.26},
                                     {48, 3.49}, {64, 3.33}, {128, 6.0}, {192, 9.24}, {384, 16.1}};
// other_types; these have kernels of their own.
constexpr RowsFactor kRowsOfIq4[] = {{1, 1}, {8, 1.36}, {16, 1.94}, {64, 3.13}};
constexpr RowsFactor kRowsOfQ3K[] = {{1, 1}, {8, 1.42}, {16, 2.15}, {64, 3.38}};
constexpr RowsFactor kRowsOfQ2K[] = {{1, 1}, {8, 1.6}, {16, 2.77}, {64, 4.76}};
struct ProductPace {
  std::string_view type;
  double share;
  std::span<const RowsFactor> rows;
};
// Q6_K's is what Q4_K_M has beside Q4_K. Types that were not measured, Q5_K, Q8_0 and those of older files, are taken
// to be between the two by their bits, MXFP4 to be like Q4_0, and those with grids to be like Q2_K, the slowest of the
// others.
constexpr ProductPace kPaces[] = {
    {"Q4_K", 0.69, kUsualRows},    {"Q6_K", 0.84, kUsualRows},   {"Q4_0", 0.69, kUsualRows},
    {"Q4_1", 0.69, kUsualRows},    {"Q5_0", 0.77, kUsualRows},   {"Q5_1", 0.77, kUsualRows},
    {"Q5_K", 0.77, kUsualRows},    {"Q8_0", 0.84, kUsualRows},   {"IQ4_NL", 0.51, kRowsOfIq4},
    {"IQ4_XS", 0.47, kRowsOfIq4},  {"Q3_K", 0.46, kRowsOfQ3K},   {"Q2_K", 0.34, kRowsOfQ2K},
    {"IQ2_XXS", 0.34, kRowsOfQ2K}, {"IQ2_XS", 0.34, kRowsOfQ2K}, {"IQ2_S", 0.34, kRowsOfQ2K},
    {"IQ3_XXS", 0.34, kRowsOfQ2K}, {"IQ3_S", 0.34, kRowsOfQ2K},  {"MXFP4", 0.69, kUsualRows}};
// A step of few rows, by builds that join small kernels with the products and compute the prefix beside the tail
// (bench_h200_q4_k_m_again.json; bf16 was not measured with them): the rest of a layer, and the tail's part of it.
constexpr double kFusedLayerUs = 18.5, kTailUs = 9.5;
constexpr int64_t kFusedRows = 8;
// Prefill dequantises each layer once, unless it is lean. With Q4_K_M a prompt of 1,024 tokens takes Llama-3.1-8B 12.5
// ms more than with bf16 on an H100 (bench_h100_dequantise.json). That is this share of weights_gb_per_s, as the card's
// sheet gives it (gpu_specs.cc), for the bytes read and written.
constexpr double kDequantiseShare = 0.54;

// Bits that a real value takes in a remainder: those of the rows of SmolLM2-64K (bench/results/remainders.txt).
constexpr double kRemainderBits = 4.3;

double rows_factor(std::span<const RowsFactor> table, int64_t rows) {
  rows = std::max(rows, table.front().rows);
  for (size_t i = 1; i < table.size(); ++i) {
    const RowsFactor &low = table[i - 1], &high = table[i];
    if (rows > high.rows) continue;
    return low.factor + (high.factor - low.factor) * static_cast<double>(rows - low.rows) /
                            static_cast<double>(high.rows - low.rows);
  }
  return table.back().factor * static_cast<double>(rows) / static_cast<double>(table.back().rows);
}

// Products of `rows` rows with the matrices of all layers and the head. A GPU multiplies plain ones in groups.
double decode_products_ms(const ModelSizes& m, const MachineRates& rates, int64_t rows) {
  const double elements = static_cast<double>(m.weights() + m.head_weights());
  uint64_t plain = m.layers_bytes() + m.head_bytes();
  if (!rates.gpu) {
    plain = m.step_bytes(rows);
    return std::max(gb_ms(static_cast<double>(plain), rates.weights_gb_per_s),
                    tflop_ms(2 * elements * static_cast<double>(rows), rates.product_tflop_per_s));
  }
  for (const QuantisedBytes& each : m.quantised) plain -= each.bytes;
  const double groups = static_cast<double>(ceil_div(rows, kGroupRows)),
               kernels = static_cast<double>(4 * m.layers + 1);
  const double launches = kernels * (m.quantised.empty() ? groups * kProductUs : kQuantisedProductUs) * 1e-3;
  return groups * gb_ms(static_cast<double>(plain), rates.weights_gb_per_s) + launches +
         quantised_products_ms(m.quantised, rates, rows) + experts_products_ms(m.experts, rates, rows);
}

double wide(const ModelSizes& m, double factor) { return m.head_dim > 128 ? factor : 1; }

const LowBitPace* pace_of(const RowShape& shape) {
  if (shape.k_type != shape.v_type) return nullptr;
  return shape.k_type == DType::kInt8 ? &kInt8Pace : shape.k_type == DType::kInt4 ? &kInt4Pace : nullptr;
}

// Attention over `rows` keys and values of all layers of `shape`. On a GPU the prefix alone: kLayerUs has the tail.
double attention_ms(const CostInput& in, int64_t queries, int64_t rows, const RowShape& shape) {
  if (rows == 0 || shape.layers == 0) return 0;
  const ModelSizes& m = in.model;
  const double seen = static_cast<double>(rows), layers = static_cast<double>(shape.layers);
  const double row_bytes = static_cast<double>(shape.bytes_all_layers()), bytes = row_bytes * seen;
  const double flop = m.attention_flop(static_cast<double>(queries), seen);
  const LowBitPace* const pace = in.rates.gpu ? pace_of(shape) : nullptr;
  double ms = gb_ms(bytes, in.rates.kv_gb_per_s);
  if (pace != nullptr) {
    const double factor = rows_factor(pace->rows, queries * m.heads / m.kv_heads) * wide(m, pace->wide);
    ms = std::max(ms, gb_ms(bytes, pace->gb_per_s) * factor);
  } else if (queries > 1) {
    const double factor = in.rates.gpu ? wide(m, kWideQueries) : 1;
    ms = std::max(ms, tflop_ms(flop * layers, in.rates.queries_tflop_per_s) * factor);
  }
  if (!in.rates.gpu) return ms;
  if (pace == nullptr && m.head_dim > 128) ms = std::max(ms, gb_ms(bytes, kWideGbPerS));
  const int64_t last = segment_range(segments_for(rows) - 1).begin;
  const int64_t longest = std::min(
      {rows, segment_range(segment_of(last)).rows, attention_part_rows(last, m.kv_heads, shape.k_type, shape.v_type)});
  const double block = row_bytes / static_cast<double>(m.kv_heads) * static_cast<double>(longest);
  const double hidden_us = m.quantised.empty() ? 0 : layers * kTailUs;
  return std::max(ms, gb_ms(block, kBlockGbPerS) - hidden_us * 1e-3) + layers * kPrefixUs * 1e-3;
}

// What a GPU does for a step's chunks beside reading their rows.
double chunks_ms(const CostInput& in, const StreamSchedule& schedule, uint64_t made_values) {
  if (!in.rates.gpu) return 0;
  const double made = static_cast<double>(made_values);
  return static_cast<double>(schedule.fills()) * kChunkUs * 1e-3 +
         std::max(made / kMadeValuesPerUs * 1e-3, gb_ms(4 * made, in.rates.kv_gb_per_s));  // 2 read, 2 written
}

// Small kernels. A recurrent layer has no tail, and its own kernels are not among them.
double layers_ms(const CostInput& in, int64_t rows) {
  const ModelSizes& m = in.model;
  if (!in.rates.gpu) return static_cast<double>(m.layers) * kCpuLayerUs * 1e-3;
  const double us = !m.quantised.empty() && rows <= kFusedRows ? kFusedLayerUs : kLayerUs;
  const int more = (m.qk_norm ? 2 : 0) + (m.gated ? 1 : 0), experts = m.experts.count > 0 ? kExpertKernels : 0;
  return (static_cast<double>(m.attention_layers()) * (us + more * kSmallKernelUs) +
          static_cast<double>(m.recurrent.layers) * (us - kTailUs) +
          static_cast<double>(m.layers) * experts * kSmallKernelUs) *
         1e-3;
}

// Products of all layers over a prompt: whole groups, then the remainder in smaller groups. The smallest read the
// weights as a decode step does.
double plain_prefill_products_ms(const CostInput& in, int64_t tokens) {
  const double layers = static_cast<double>(in.model.layers), weights = static_cast<double>(in.model.weights());
  const double once = gb_ms(static_cast<double>(in.model.shared_weights() * in.model.type_bytes) +
                                static_cast<double>(in.model.experts.stored_bytes),
                            in.rates.weights_gb_per_s);
  const auto rows_ms = [&](int64_t rows) {
    return tflop_ms(2 * weights * static_cast<double>(rows), in.rates.product_tflop_per_s);
  };
  if (!in.rates.gpu) return std::max(rows_ms(tokens) / kCpuPrefillShare, once);
  const auto group_ms = [&](int64_t rows, double product_us) {
    return std::max(rows_ms(rows) / kPrefillProductShare, once) + layers * 4 * product_us * 1e-3;
  };
  const int64_t large = tokens / kPrefillGroupRows, rest = tokens % kPrefillGroupRows;
  const int64_t middle = rest / kMiddleGroupRows, small = ceil_div(rest % kMiddleGroupRows, kGroupRows);
  return static_cast<double>(large) * group_ms(kPrefillGroupRows, kLargeProductUs) +
         static_cast<double>(middle) * group_ms(kMiddleGroupRows, kMiddleProductUs) +
         static_cast<double>(small) * group_ms(kGroupRows, kProductUs);
}

// In 8 bits a product has one rate for every number of rows.
double prefill_products_ms(const CostInput& in, int64_t tokens) {
  const double rate = in.rates.int8_product_tflop_per_s;
  if (!in.plan.prefill_int8 || rate <= 0) return plain_prefill_products_ms(in, tokens);
  const double weights = static_cast<double>(in.model.weights());
  const double groups = static_cast<double>(ceil_div(tokens, kPrefillGroupRows));
  const double launches = groups * static_cast<double>(in.model.layers) * 4 * kMiddleProductUs * 1e-3;
  return tflop_ms(2 * weights * static_cast<double>(tokens), rate) + (in.rates.gpu ? launches : 0);
}

double prefill_attention_ms(const CostInput& in, double tokens) {
  const ModelSizes& m = in.model;  // layers with a window are computed in the type of the computation
  const double plain = in.rates.attention_tflop_per_s / (in.rates.gpu ? wide(m, kWidePrefill) : 1);
  const double int8 = in.plan.prefill_int8 ? in.rates.int8_attention_tflop_per_s : 0;  // heads of 256 are no slower
  const double windows = static_cast<double>(m.window_layers), full = static_cast<double>(m.read_rows().layers);
  return tflop_ms(full * m.attention_flop(tokens, tokens / 2), int8 > 0 ? int8 : plain) +
         tflop_ms(windows * m.window_flop(tokens, m.mean_window(tokens)), plain);
}

// The rows of each layer are read once more, and written in 8 bits.
double int8_rows_ms(const CostInput& in, double tokens) {
  if (!in.plan.prefill_int8) return 0;
  const ModelSizes& m = in.model;
  const double elements = 2 * static_cast<double>(m.rows.layers * m.kv_heads * m.head_dim) * tokens;
  return gb_ms(elements * static_cast<double>(m.type_bytes + 1), kConvertedShare * in.rates.kv_gb_per_s);
}

// Each layer's quantised matrices become plain ones, and in 8 bits all matrices int8, once, or for each group of rows.
double dequantise_ms(const CostInput& in, double groups) {
  if (in.model.quantised.empty() && !in.plan.prefill_int8) return 0;
  int64_t written = in.model.shared_weights() * (in.plan.prefill_int8 ? 1 : in.model.type_bytes);
  uint64_t read = in.model.layers_bytes();
  if (in.plan.prefill_int8) {  // experts, too, all of them
    written += in.model.expert_weights();
    read += in.model.experts.stored_bytes;
  }
  const double times = in.plan.lean_prefill ? groups : 1;
  return times *
         gb_ms(static_cast<double>(read) + static_cast<double>(written), kDequantiseShare * in.rates.weights_gb_per_s);
}

// Reads and writes of a prompt's states by norms, RoPE and activation, in all layers.
double prefill_states_ms(const CostInput& in, int64_t tokens) {
  const ModelSizes& m = in.model;
  const int64_t heads = m.heads + 2 * m.kv_heads, normed = m.qk_norm ? m.heads + m.kv_heads : 0;
  const int64_t gates = m.gated ? m.heads : 0,
                around = 4 * m.hidden + 3 * m.ffn + m.experts.used * (4 * m.hidden + 3 * m.experts.ffn);
  const int64_t elements = m.layers * around + m.attention_layers() * 2 * (heads + normed + gates) * m.head_dim;
  return gb_ms(static_cast<double>(elements * m.type_bytes) * static_cast<double>(tokens), in.rates.weights_gb_per_s);
}

// Segments [resident, sealed) of the layers that have rows in host memory or on disk.
StreamSchedule streamed(const CostInput& in, int64_t rows) {
  RowShape leaving = in.model.rows;
  leaving.layers = in.plan.host_layers;
  int64_t sealed = segments_for(rows);
  if (sealed > 0 && segment_range(sealed - 1).end() > rows) --sealed;
  if (leaving.layers == 0 || sealed <= in.plan.resident_segments) return {};
  return plan_stream(leaving, in.plan.placement, sealed, in.plan.ring_slot_bytes);
}

// What a step streams: bytes over the link, and values whose rows are made of the int8 copy and its remainders.
struct StreamedBytes {
  uint64_t link = 0, made_values = 0;
};
StreamedBytes streamed_bytes(const CostInput& in, const StreamSchedule& schedule) {
  StreamedBytes bytes;
  bytes.link = schedule.bytes();
  const uint64_t layers = static_cast<uint64_t>(schedule.layers);
  for (const Chunk& chunk : schedule.chunks) {
    const int64_t end = std::min(chunk.last_segment, in.plan.remainder_segments);
    if (chunk.tier != Tier::kHost || chunk.first_segment >= end) continue;
    const uint64_t values = segments_values(in.model.rows, chunk.first_segment, end);
    bytes.link -= layers * segments_bytes(in.model.rows, chunk.first_segment, end);
    bytes.link +=
        layers * remainder_bytes(values, static_cast<uint64_t>(static_cast<double>(values) * kRemainderBits / 32));
    bytes.made_values += layers * values;
  }
  return bytes;
}

void add_disk(uint64_t bytes, double gb_per_s, PassCost* cost) {
  cost->disk_bytes = bytes;
  cost->known = bytes == 0 || gb_per_s > 0;
  if (bytes > 0 && gb_per_s > 0) cost->disk_ms = gb_ms(static_cast<double>(bytes), gb_per_s);
}

}  // namespace

double quantised_products_ms(std::span<const QuantisedBytes> quantised, const MachineRates& rates, int64_t rows) {
  double ms = 0;
  for (const QuantisedBytes& each : quantised) {
    const auto* pace = std::find_if(std::begin(kPaces), std::end(kPaces),
                                    [&](const ProductPace& known) { return known.type == each.type; });
    CHECK(pace != std::end(kPaces), each.type);
    const auto bytes = static_cast<double>(each.bytes);
    const double read = gb_ms(bytes, rates.weights_gb_per_s), read_there = gb_ms(bytes, kPaceGbPerS);
    ms += std::max(read, read_there * rows_factor(pace->rows, rows) / pace->share + kReadShare * (read - read_there));
  }
  return ms;
}

PassCost step_cost(const CostInput& in, const PassShape& pass) {
  CHECK(in.rates.known() && pass.queries > 0 && pass.committed >= 0);
  PassCost cost;
  const bool partial = pass.mode == StepMode::kPartial;
  const bool blocks = partial && pass.partial.has_blocks(), copy = partial && pass.partial.copy;
  const int64_t rows = blocks ? std::min(pass.partial.rows(), pass.committed) : pass.committed;
  const RowShape stored = in.model.read_rows();
  const RowShape full = blocks || stored.values_alone ? stored.exact() : stored;  // attention reads K that is made, too
  const RowShape shape = copy ? copy_rows(stored, *pass.partial.copy) : full;
  cost.weight_bytes = in.model.step_bytes(pass.queries);
  const RowShape windows = in.model.window_rows();  // exact in every step
  const int64_t seen = std::min(in.model.window, pass.committed);
  cost.kv_bytes =
      shape.bytes_all_layers() * static_cast<uint64_t>(rows) + windows.bytes_all_layers() * static_cast<uint64_t>(seen);
  const StreamSchedule schedule = partial ? StreamSchedule() : streamed(in, pass.committed);
  const StreamedBytes bytes = streamed_bytes(in, schedule);
  cost.streamed_weight_bytes = streamed_weight_bytes(in, pass.queries);
  cost.link_bytes = bytes.link + cost.streamed_weight_bytes;
  add_disk(schedule.disk_bytes(), in.rates.disk_read_gb_per_s, &cost);
  const double weights_ms =
      gb_ms(static_cast<double>(cost.streamed_weight_bytes), in.rates.to_device_gb_per_s) / kLinkShare;
  cost.link_ms = (gb_ms(static_cast<double>(bytes.link), in.rates.to_device_gb_per_s) /
                  (bytes.made_values > 0 ? kRemainderLinkShare : kLinkShare)) +
                 weights_ms;
  if (in.plan.host_experts_alone) cost.fetch_ms = weights_ms;
  cost.device_ms =
      decode_products_ms(in.model, in.rates, pass.queries) + layers_ms(in, pass.queries) +
      attention_ms(in, pass.queries, blocks || !in.rates.gpu ? rows : tail_begin(rows), shape) +
      attention_ms(in, pass.queries, in.rates.gpu ? std::min(seen, tail_begin(pass.committed)) : seen, windows) +
      chunks_ms(in, schedule, bytes.made_values) + recurrent_step_ms(in.model.recurrent, pass, in.rates);
  // Values that arrive are read, and as many keys written.
  if (stored.values_alone) cost.device_ms += gb_ms(2 * static_cast<double>(schedule.bytes()), in.rates.kv_gb_per_s);
  cost.state_bytes = in.model.recurrent.state_bytes();
  cost.beside = in.rates.gpu;
  return cost;
}

// The pass over the full KV after prefill reads each row once, wherever it is, and computes little.
void add_fill(const CostInput& in, const StreamSchedule& schedule, PassCost* cost) {
  if (!in.plan.late_partial) return;
  PassCost fill;
  fill.link_ms = gb_ms(static_cast<double>(schedule.bytes()), in.rates.to_device_gb_per_s) / kLinkShare;
  add_disk(schedule.disk_bytes(), in.rates.disk_read_gb_per_s, &fill);
  cost->known = cost->known && fill.known;
  if (fill.known) cost->fill_ms = fill.ms();
}

PassCost prefill_cost(const CostInput& in, int64_t prompt_tokens) {
  CHECK(in.rates.known() && prompt_tokens > 0);
  const ModelSizes& m = in.model;
  const double tokens = static_cast<double>(prompt_tokens);
  PassCost cost;
  cost.weight_bytes = static_cast<uint64_t>(m.shared_weights() * m.type_bytes) + m.experts.stored_bytes;
  cost.kv_bytes = m.read_rows().bytes_all_layers() * static_cast<uint64_t>(prompt_tokens) +
                  m.window_rows().bytes_all_layers() * static_cast<uint64_t>(std::min(m.window, prompt_tokens));
  const StreamSchedule schedule = streamed(in, prompt_tokens);
  // Of states in host memory, what leaves; what comes back, as much, has the link's other direction.
  const uint64_t states = static_cast<uint64_t>(m.layers) * in.plan.host_states_bytes;
  cost.link_bytes = schedule.bytes() + in.plan.remainder_bytes + states;
  add_disk(schedule.disk_bytes(), in.rates.disk_write_gb_per_s, &cost);
  cost.streamed_weight_bytes = in.plan.host_weights_bytes;  // has the link's other direction
  cost.link_ms =
      std::max(gb_ms(static_cast<double>(cost.link_bytes), in.rates.to_host_gb_per_s),
               gb_ms(static_cast<double>(cost.streamed_weight_bytes), in.rates.to_device_gb_per_s) / kLinkShare);
  cost.device_ms = prefill_products_ms(in, prompt_tokens) + prefill_attention_ms(in, tokens) +
                   recurrent_prefill_ms(m.recurrent, prompt_tokens, kPrefillGroupRows, in.rates);
  if (in.rates.gpu) {
    const double groups = static_cast<double>(ceil_div(prompt_tokens, kPrefillGroupRows));
    cost.device_ms += prefill_states_ms(in, prompt_tokens) + dequantise_ms(in, groups) + int8_rows_ms(in, tokens) +
                      groups * layers_ms(in, prompt_tokens) + kPrefillMs;
  } else {
    cost.device_ms += layers_ms(in, prompt_tokens);
  }
  add_fill(in, schedule, &cost);
  cost.beside = in.rates.gpu;
  return cost;
}

}  // namespace headrace
