// What a run will cost in time: sizes, a memory plan and the rates of a machine give milliseconds (docs/design.md,
// section 10). A step takes what its slowest part takes, since transfers run beside the compute. Pure functions of
// plain values; nothing is measured here (runtime/commands/profile.h does).
#pragma once

#include <cstdint>

#include "cache/memory_plan.h"
#include "cache/partial.h"

namespace headrace {

// What a machine does, each rate as the one copy or kernel reaches it over many bytes.
struct MachineRates {
  bool gpu = false;               // else the CPU backend: kernels and copies share cores and memory
  double to_device_gb_per_s = 0;  // pinned memory, copies of 16 MiB and more
  double to_host_gb_per_s = 0;
  double weights_gb_per_s = 0;                             // a large matrix times few rows
  double kv_gb_per_s = 0;                                  // decode attention of one query
  double product_tflop_per_s = 0;                          // a large matrix times a group of prefill
  double attention_tflop_per_s = 0;                        // prefill attention
  double queries_tflop_per_s = 0;                          // decode attention of many queries
  double disk_read_gb_per_s = 0, disk_write_gb_per_s = 0;  // large and many; 0: not known
  bool known() const;                                      // all but the disk's are
};

// A decoder's sizes.
struct ModelSizes {
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t type_bytes = 2;  // of a weight
  bool qk_norm = false;    // norms of queries and of keys: two kernels more a layer
  RowShape rows{};         // of the KV cache

  int64_t layer_weights() const;  // elements of a layer's matrices
  int64_t head_weights() const { return vocab * hidden; }
};

// Bytes that a pass moves, and the time of each part by itself.
struct PassCost {
  uint64_t link_bytes = 0;                  // to the device; of a prefill, to the host
  uint64_t weight_bytes = 0, kv_bytes = 0;  // that kernels read
  uint64_t disk_bytes = 0;                  // of the link's: read before, or written after
  double link_ms = 0, device_ms = 0, disk_ms = 0;
  bool beside = true;  // link and compute run side by side, or one has to wait for the other; the disk always does
  bool known = true;   // else it needs a disk whose rate is not known, and has no time
  double ms() const;   // REQUIRES: known
  const char* bound() const;  // "device", "link" or "disk": what takes longest. REQUIRES: known
};

struct CostInput {
  ModelSizes model{};
  MemoryPlan plan{};
  MachineRates rates{};  // REQUIRES: known()
};

// One target pass of `queries` rows behind `committed` rows. kPartial reads `partial` in the place of the full KV.
struct PassShape {
  StepMode mode = StepMode::kFull;
  int64_t committed = 0, queries = 1;
  PartialShape partial{};
};
PassCost step_cost(const CostInput& input, const PassShape& pass);

// All layers of a prompt, to its first token.
PassCost prefill_cost(const CostInput& input, int64_t prompt_tokens);

// Proposing a tree of so many levels: a pass over the draft's weights for each.
double draft_ms(uint64_t draft_weights_bytes, int64_t levels, const MachineRates& rates);

}  // namespace headrace
