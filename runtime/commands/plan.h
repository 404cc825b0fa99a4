// headrace plan: what a run would take before anything of it is there (docs/design.md, section 10). The engine plans on
// a device of paper, by the way that a run takes; the times come from what was measured of the device, or from a card's
// data sheet. Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/commands/profile_store.h"
#include "runtime/engine/engine.h"

namespace headrace {

struct PlanOptions {
  EngineOptions engine;  // its rates_of and want_tokenizer are not looked at
  std::string shape;     // instead of engine.model (runtime/model/files/shapes.h)
  std::string gpu;       // a card by its data sheet instead of a device that is here (cache/gpu_specs.h); empty: none
  std::string profile;   // a file of profiles; empty: the one that is kept
  int64_t output_tokens = 256;  // of the context
  int64_t now = 0;              // seconds since 1970, for the profile's age; 0: what the system says
};

// What would fit where the plan does not.
struct PlanAdvice {
  int64_t context_tokens = 0;  // in these budgets; 0: none
  bool kv_auto = false;        // --kv auto would do in these budgets; it was not asked for
  // The least of each, as its flag takes it, with the others as they are: a page less is refused. 0: no amount of it
  // would do. spill_bytes is of a disk.
  uint64_t vram_bytes = 0, host_bytes = 0, spill_bytes = 0;
  // What this context needs with all of its KV cache on the device, and with none of it; 0: nothing was found.
  uint64_t device_vram_bytes = 0, device_host_bytes = 0;
  uint64_t host_vram_bytes = 0, host_host_bytes = 0;
  uint64_t card_vram_bytes = 0;  // what --vram may come to at most; 0: not known
};

struct PlanReport {
  std::string model, device;
  DType dtype = DType::kBF16;
  uint64_t vram_limit_bytes = 0, host_limit_bytes = 0, taken_bytes = 0;  // taken: of the device, by what drives it
  bool one_memory = false;                                               // both limits are the host's
  int64_t context_tokens = 0, output_tokens = 0;                         // asked for
  std::optional<RunPlan> run;                                            // none: it does not fit
  std::string refusal;                                                   // why not
  PlanAdvice advice;
  // "what headrace profile measured on 2026-…", of whom if not of this very machine; "the data sheet of …"; empty:
  // nobody knows
  std::string rates_from;
  std::string note;  // about a profile that could not be used
  std::optional<MachineRates> rates;
  std::string measured;            // when the rates were, where they are a profile's
  std::optional<int64_t> age_s;    // of that profile; none: its time is not known
  std::vector<RateSpread> spread;  // of its repeats; empty: not known
  std::optional<Prediction> predicted;

  uint64_t device_bytes() const;  // with weights, at the peak
};

// Throws Error, but not for a run that does not fit: that is a report.
PlanReport make_plan_report(const PlanOptions& options);

// One JSON object, indented, with a newline.
std::string plan_json(const PlanReport& report);

}  // namespace headrace
