// Predicts the time of a run in milliseconds from sizes, a memory plan and the rates of a machine (docs/design.md,
// section 10). Transfers overlap the compute, so a step takes as long as its slowest part. Pure functions of plain
// values; runtime/commands/profile.h does the measuring.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/memory_plan.h"
#include "cache/partial.h"
#include "cache/recurrent_cost.h"

namespace headrace {

// Rates of a machine. Each is what one copy or kernel reaches on a large operation.
struct MachineRates {
  bool gpu = false;               // false: the CPU backend, where kernels and copies share cores and memory
  double to_device_gb_per_s = 0;  // pinned memory, copies of 16 MiB and more
  double to_host_gb_per_s = 0;
  double weights_gb_per_s = 0;       // a large matrix times few rows
  double kv_gb_per_s = 0;            // decode attention of one query
  double product_tflop_per_s = 0;    // a large matrix times a group of prefill
  double attention_tflop_per_s = 0;  // prefill attention
  double queries_tflop_per_s = 0;    // decode attention of many queries
  // Of prefill in 8 bits: T operations/s. 0: unknown, and taken to be as fast as the computation's type.
  double int8_product_tflop_per_s = 0, int8_attention_tflop_per_s = 0;
  double disk_read_gb_per_s = 0, disk_write_gb_per_s = 0;  // large blocks, deep queue; 0: unknown
  bool known() const;                                      // all but the disk's and those of 8 bits are set
};

inline double gb_ms(double bytes, double gb_per_s) { return bytes / gb_per_s * 1e-6; }
inline double tflop_ms(double flop, double tflop_per_s) { return flop / tflop_per_s * 1e-9; }

// Matrices of one type that stay quantised: all layers' and the head's.
struct QuantisedBytes {
  std::string type;  // "Q4_K"
  uint64_t bytes = 0;
};

// The experts of all layers, of which a token uses some.
struct ExpertSizes {
  int64_t count = 0, used = 0, ffn = 0;     // 0: no layer has experts
  uint64_t stored_bytes = 0;                // as a step reads them, if it reads all
  std::vector<QuantisedBytes> quantised{};  // part of those

  // Of the experts of a layer, the part that `rows` rows are expected to use if each uses any as likely as others.
  double read_share(int64_t rows) const;
};

// Sizes of a decoder. Layers are of three kinds: those that see all rows, rows.layers of which have their own in the KV
// cache, those with a window of rows, and recurrent ones.
struct ModelSizes {
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t type_bytes = 2;  // of an element that is computed with
  // What all layers' matrices but experts and the head's take, as a step reads them; 0: type_bytes for each weight.
  uint64_t stored_layers_bytes = 0, stored_head_bytes = 0;
  std::vector<QuantisedBytes> quantised{};  // part of those
  int64_t attention_weights = 0;            // elements of all attention's matrices, if layers differ; 0: they are alike
  bool qk_norm = false;                     // norms of queries and of keys: two kernels more a layer
  bool gated = false;                       // attention's output is multiplied by gates: more of q, and a kernel more
  RowShape rows{};                          // of the KV cache
  int64_t reading_layers = 0;               // layers without rows of their own that read those of another layer
  RecurrentSizes recurrent{};
  int64_t window_layers = 0, window = 0;  // layers whose queries see, and which keep, a window of such rows
  // Of those, a query's elements and the heads of rows; 0: as of the others.
  int64_t window_width = 0, window_kv_heads = 0, window_head_dim = 0;
  ExpertSizes experts{};

  int64_t weights() const;         // elements of all layers' matrices that a token is multiplied with
  int64_t shared_weights() const;  // of these, those that are no expert's
  int64_t expert_weights() const;  // of all experts
  int64_t head_weights() const { return vocab * hidden; }
  uint64_t layers_bytes() const;
  uint64_t head_bytes() const;
  // One layer's attention: products of all queries with `seen` keys and values.
  double attention_flop(double queries, double seen) const {
    return 4 * static_cast<double>(heads * head_dim) * queries * seen;
  }
  double window_flop(double queries, double seen) const {  // the same of a layer with a window
    return 4 * static_cast<double>(window_width > 0 ? window_width : heads * head_dim) * queries * seen;
  }
  int64_t attention_layers() const { return rows.layers + reading_layers + window_layers; }
  RowShape read_rows() const {  // by the queries of a token
    RowShape shape = rows;
    shape.layers += reading_layers;
    return shape;
  }
  RowShape window_rows() const {
    RowShape shape = rows;
    shape.layers = window_layers;
    if (window_kv_heads > 0) shape.kv_heads = window_kv_heads;
    if (window_head_dim > 0) shape.head_dim = window_head_dim;
    return shape;
  }
  // The rows that a prompt's queries see of a layer with a window, on average.
  double mean_window(double tokens) const {
    const double most = std::min(static_cast<double>(window), tokens);
    return most - most * most / (2 * tokens);
  }
  uint64_t step_bytes(int64_t queries) const;  // that a step of so many rows reads: layers, experts and head
};

// Bytes that a pass moves, and the time of each part alone.
struct PassCost {
  uint64_t link_bytes = 0;                  // to the device; for a prefill, to the host
  uint64_t weight_bytes = 0, kv_bytes = 0;  // read by kernels
  // Of layers in host memory, over the link to the device. In a step they are part of link_bytes; of experts with a
  // slab, those that it is expected to lack (cache/expert_slab.h).
  uint64_t streamed_weight_bytes = 0;
  uint64_t state_bytes = 0;  // of recurrent states, which a step reads and writes
  uint64_t disk_bytes = 0;   // part of link_bytes: read from disk before the transfer, or written after it
  double link_ms = 0, device_ms = 0, disk_ms = 0;
  double fetch_ms = 0;        // part of link_ms: experts, for which the device waits
  double fill_ms = 0;         // afterwards, alone: the pass over the full KV that fills a late partial KV
  bool beside = true;         // link and compute overlap; otherwise one waits for the other. The disk always overlaps
  bool known = true;          // false: depends on a disk of unknown rate, so there is no time
  double ms() const;          // REQUIRES: known
  const char* bound() const;  // the slowest part: "device", "link" or "disk". REQUIRES: known
};

struct CostInput {
  ModelSizes model{};
  MemoryPlan plan{};
  MachineRates rates{};  // REQUIRES: known()
};

// One target pass of `queries` rows after `committed` rows, `accepted` of which are committed or pending then. kPartial
// reads `partial` instead of the full KV.
struct PassShape {
  StepMode mode = StepMode::kFull;
  int64_t committed = 0, queries = 1;
  PartialShape partial{};
  int64_t accepted = 1;
};
PassCost step_cost(const CostInput& input, const PassShape& pass);
// PassCost::streamed_weight_bytes of a step of so many rows.
uint64_t streamed_weight_bytes(const CostInput& input, int64_t rows);

// Prefill of a prompt, up to its first token.
PassCost prefill_cost(const CostInput& input, int64_t prompt_tokens);

// A GPU's products of `rows` rows with matrices that stay quantised.
double quantised_products_ms(std::span<const QuantisedBytes> quantised, const MachineRates& rates, int64_t rows);
// A GPU's products of `rows` rows with the experts that they are expected to use.
double experts_products_ms(const ExpertSizes& experts, const MachineRates& rates, int64_t rows);

}  // namespace headrace
