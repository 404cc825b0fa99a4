// headrace plan: the needs of a run before anything is allocated (docs/design.md, section 10). The engine plans with
// the code of a real run on a simulated device. Times come from measurements of the device, or from a card's data
// sheet. Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "offload/device/dry_run_device.h"
#include "runtime/commands/profile_store.h"
#include "runtime/engine/engine.h"
#include "runtime/model/weight_mixture.h"

namespace headrace {

struct PlanOptions {
  EngineOptions engine;                          // its rates_of and want_tokenizer are ignored
  std::string shape{};                           // instead of engine.model (runtime/model/files/shapes.h)
  const WeightMixture* shape_weights = nullptr;  // of the shape; null: they are not quantised
  std::string gpu{};            // a card by its data sheet instead of a present device (cache/gpu_specs.h); empty: none
  std::string profile{};        // a file of profiles; empty: the kept one
  int64_t output_tokens = 256;  // of the context
  int64_t now = 0;              // seconds since 1970, for the profile's age; 0: the system's time
  std::optional<DryRunCard> card{};  // a device that is open, instead of engine.device and gpu
};

// The same run with other settings, side by side with it.
struct PlanSetting {
  std::string flags;                         // "--weights q4_k -ctk int8 -ctv int8"; empty: the run as it is asked for
  std::string weights{}, cache{}, verify{};  // "bf16", "int8", "lossless"; verify is empty if it does not fit
  bool fits = false;
  std::optional<double> first_token_ms{}, tokens_per_s{};  // none: unknown
  bool at_least = false;                                   // as in Prediction
};

// What would fit if the plan does not.
struct PlanAdvice {
  int64_t context_tokens = 0;               // in these budgets; 0: none
  bool kv_auto = false;                     // --kv auto would fit these budgets and was not requested
  std::optional<PartialKind> partial_kv{};  // would fit these budgets, instead of the copy that was requested
  // The minimum of each, in the unit of its flag, with the others unchanged: one page less does not fit. 0: no amount
  // fits. spill_bytes: of a disk.
  uint64_t vram_bytes = 0, host_bytes = 0, spill_bytes = 0;
  // The needs of this context with the whole KV cache on the device, and with none of it there; 0: not found.
  uint64_t device_vram_bytes = 0, device_host_bytes = 0;
  uint64_t host_vram_bytes = 0, host_host_bytes = 0;
  uint64_t card_vram_bytes = 0;  // the maximum of --vram; 0: unknown
};

struct PlanReport {
  std::string model, device;
  DType dtype = DType::kBF16;
  uint64_t vram_limit_bytes = 0, host_limit_bytes = 0, taken_bytes = 0;  // taken: device memory used by its system
  bool one_memory = false;                                               // both limits are the host's
  int64_t context_tokens = 0, output_tokens = 0;                         // requested
  std::optional<RunPlan> run;                                            // none: it does not fit
  std::string refusal;                                                   // why it does not fit
  PlanAdvice advice;
  // "what headrace profile measured on 2026-…", with the machine if it is another one; "the data sheet of …"; empty:
  // unknown
  std::string rates_from;
  std::string assumed;                   // about the prediction of prefill, where its rates were never measured
  std::string note;                      // about a profile that could not be used
  std::string weights_note, cache_note;  // the Engine's
  std::optional<MachineRates> rates;
  std::string measured;            // date of a profile's measurement
  std::optional<int64_t> age_s;    // of that profile; none: unknown
  std::vector<RateSpread> spread;  // of its rounds; empty: unknown
  std::optional<Prediction> predicted;
  std::vector<PlanSetting> settings;  // the run first
  bool quantised = false;             // its weights, in the files or as they are loaded
  bool exact_rows = false;            // ModelConfig::exact_rows: a cache in 8 bits is not proposed
  // Tokens that the model was made for, and the flags by which its card extends them; empty: it does not, or they are
  // given.
  int64_t own_context_tokens = 0;
  std::string card_rope;

  uint64_t device_bytes() const;  // peak, weights included
  uint64_t host_bytes() const;    // peak, the table of tokens included
};

constexpr char kTokenTable[] = "table of what tokens add to the layers";  // a line of memory

// Throws Error, except for a run that does not fit: that is a report.
PlanReport make_plan_report(const PlanOptions& options);

// What other settings would cost a run that the engine has done; empty: unknown. `options`: the engine's.
std::vector<PlanSetting> settings_beside(const Engine& engine, const EngineOptions& options, int64_t prompt_tokens,
                                         int64_t output_tokens);

// One JSON object, indented, with a newline.
std::string plan_json(const PlanReport& report);

}  // namespace headrace
