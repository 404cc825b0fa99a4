// headrace bench: end-to-end cost of a model. Prefill of a generated prompt and decoding after it, by length and KV
// mode, beside the peak of the link in the same run. Thread: one, except for `interrupt`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "offload/host/machine.h"
#include "offload/measure/link_bandwidth.h"
#include "runtime/engine/engine.h"
#include "runtime/model/weight_mixture.h"

namespace headrace {

struct BenchOptions {
  EngineOptions engine;  // its kv, ctx_size and want_tokenizer are ignored
  std::string shape;     // random weights in this shape (runtime/model/files/shapes.h) instead of engine.model
  const WeightMixture* shape_weights = nullptr;  // of these weights; null: they are not quantised
  std::vector<int64_t> prompt_tokens = {4096};
  std::vector<KvMode> kv = {KvMode::kAuto};
  int64_t decode_tokens = 32;
  int64_t repeat = 1;  // per row
  uint64_t seed = 0;   // of the weights and of the prompts
  const std::atomic<bool>* interrupt = nullptr;
};

// One prompt length and one KV mode.
struct BenchRow {
  int64_t prompt_tokens = 0;
  KvMode kv = KvMode::kAuto;
  std::vector<double> prefill_ms{};  // of each run
  std::vector<float> step_ms{};      // the decode steps of all runs
  double host_memory_ms = 0;         // of the last run: time to pin the KV cache's host memory, in parallel to prefill
  double host_wait_ms = 0;           // of the last run: time that prefill waited for it
  double h2d_bytes_per_step = 0, d2h_bytes_per_step = 0;
  double disk_bytes_per_step = 0;  // including reads ahead for the next step
  SpillUse spill{};                // of the last run
  double decode_ms = 0;            // total time of the last run's steps
  MemoryUse memory{};              // of the last run; the process's peak so far
  MemoryPlan plan{};
  std::optional<Prediction> predicted{};  // of the last run, if the machine's rates are known
  std::string error{};                    // why it does not fit; then only length and mode are set

  double median_prefill_ms() const;
  double prefill_tokens_per_s() const;
  double step_ms_at(double share) const;  // 0.5: the median step; 0 without steps
  double decode_tokens_per_s() const;     // of the median step
  double link_gb_per_s() const;           // to the device, over the median step
  double checksum_share() const;          // of a core, beside the last run's steps
  double disk_gb_per_s() const;           // from the disk, over the median step
};

struct BenchReport {
  Machine machine;
  std::string device, model;
  ModelConfig config;
  const char* prefill_type = "";  // "int8", "bf16"
  DType dtype = DType::kBF16, cache_type_k = DType::kBF16, cache_type_v = DType::kBF16;
  std::vector<WeightTypeUse> weight_types;
  std::string weights_note, cache_note;  // the Engine's
  uint64_t vram_limit_bytes = 0, host_limit_bytes = 0;
  int64_t decode_tokens = 0, repeat = 0;
  uint64_t seed = 0;
  std::vector<LinkPeak> link;  // by use; empty if the budgets have no room to measure it
  double load_ms = 0;
  std::vector<BenchRow> rows;
  std::optional<TraceSummary> trace;  // of all runs, if engine.device.trace_path asked for one
  bool interrupted = false;

  double link_peak_gb_per_s(LinkUse use) const;  // 0: not measured
};

struct BenchHooks {
  Progress* progress = nullptr;
  std::function<void(const Device& device)> on_device{};
  std::function<void(const std::string& label)> on_begin{};  // "[1/4] 16384 host"
  std::function<void(const BenchReport& so_far)> on_row{};   // the last row is new
};

// Throws Error: an unknown shape, a model that cannot be opened, weights that do not fit, a prompt longer than the
// model's context. A row whose KV cache does not fit has an `error`, and the others continue.
BenchReport run_bench(const BenchOptions& options, const BenchHooks& hooks);

// The report as one JSON object, indented, with a newline.
std::string bench_json(const BenchReport& report);

const char* kv_mode_name(KvMode mode);  // "auto", "device", "host"

}  // namespace headrace
